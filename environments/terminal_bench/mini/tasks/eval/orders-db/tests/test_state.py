"""Customers are single, orders point to them, and the best three are listed."""

import csv
import sqlite3
import unittest

OWNERS = [1, 1, 2, 2, 2, 4, 4, 5, 7, 7, 1, 2]
TOP = [["name", "cents"], ["Bo Lind", "4300"], ["Ada Moor", "4100"], ["Cy Ott", "4100"]]


class Shop(unittest.TestCase):
    def setUp(self):
        self.database = sqlite3.connect("file:/app/shop.db?mode=ro", uri=True)
        self.addCleanup(self.database.close)

    def test_customers(self):
        rows = self.database.execute("SELECT id, name, city FROM customers ORDER BY id").fetchall()
        self.assertEqual([row[0] for row in rows], [1, 2, 4, 5, 7])
        self.assertEqual(rows[0][1:], ("Ada Moor", "Ulm"))

    def test_orders(self):
        rows = self.database.execute("SELECT customer_id, cents FROM orders ORDER BY id").fetchall()
        self.assertEqual([row[0] for row in rows], OWNERS)
        self.assertEqual(sum(row[1] for row in rows), 27350)

    def test_index(self):
        listed = self.database.execute("PRAGMA index_list(orders)").fetchall()
        self.assertIn(("orders_id", 1), [(row[1], row[2]) for row in listed])
        columns = self.database.execute("PRAGMA index_info(orders_id)").fetchall()
        self.assertEqual([row[2] for row in columns], ["id"])

    def test_top(self):
        with open("/app/top.csv", newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
        self.assertEqual(rows[:2], TOP[:2])
        self.assertEqual(sorted(rows[2:]), sorted(TOP[2:]))


if __name__ == "__main__":
    unittest.main()
