#!/bin/bash
set -e
python3 - <<'EOF'
import csv
import json

cents = {}
with open("/app/sales.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file, delimiter=";"):
        region = row["region"].strip().lower()
        sign = {"sale": 1, "refund": -1, "test": 0}[row["kind"]]
        price = round(float(row["price"].replace(",", ".")) * 100)
        cents[region] = cents.get(region, 0) + sign * int(row["units"]) * price
with open("/app/report.json", "w", encoding="utf-8") as file:
    json.dump({region: value / 100 for region, value in cents.items()}, file)
EOF
