#!/bin/bash
set -e
python3 - <<'EOF'
import sqlite3

with sqlite3.connect("/app/shop.db") as database:
    same = (
        "(SELECT min(o.id) FROM customers o"
        " WHERE lower(o.name) = lower(c.name) AND lower(o.city) = lower(c.city))"
    )
    kept = dict(database.execute(f"SELECT c.id, {same} FROM customers c").fetchall())
    for old, new in kept.items():
        database.execute("UPDATE orders SET customer_id = ? WHERE customer_id = ?", (new, old))
        if old != new:
            database.execute("DELETE FROM customers WHERE id = ?", (old,))
    database.execute("CREATE UNIQUE INDEX orders_id ON orders (id)")
    top = database.execute(
        "SELECT name, sum(cents) AS total FROM orders JOIN customers c ON c.id = customer_id "
        "WHERE state = 'paid' GROUP BY c.id ORDER BY total DESC LIMIT 3"
    ).fetchall()
database.close()
with open("/app/top.csv", "w", encoding="utf-8") as file:
    print("name,cents", file=file)
    for name, total in top:
        print(f"{name},{total}", file=file)
EOF
