"""Fills the database; run once when the image is built."""

import sqlite3

CUSTOMERS = [
    *((1, "Ada Moor", "Ulm"), (2, "Bo Lind", "Bern"), (3, "ADA MOOR", "ulm"), (4, "Cy Ott", "Graz")),
    *((5, "Ada Moor", "Bern"), (6, "bo lind", "BERN"), (7, "Di Rey", "Graz"), (8, "Bo Lind", "Bern")),
]
ORDERS = [
    *((1, 1, 1500, "paid"), (2, 3, 2600, "paid"), (3, 2, 900, "open"), (4, 6, 1900, "paid")),
    *((5, 8, 2300, "paid"), (6, 4, 4100, "paid"), (7, 4, 700, "void"), (8, 5, 3900, "paid")),
    *((9, 7, 8000, "open"), (10, 7, 150, "paid"), (11, 3, 1200, "void"), (12, 8, 100, "paid")),
]
with sqlite3.connect("/app/shop.db") as database:
    database.execute("CREATE TABLE customers (id INTEGER, name TEXT, city TEXT)")
    database.execute("CREATE TABLE orders (id INTEGER, customer_id INTEGER, cents INTEGER, state TEXT)")
    database.executemany("INSERT INTO customers VALUES (?, ?, ?)", CUSTOMERS)
    database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ORDERS)
database.close()
