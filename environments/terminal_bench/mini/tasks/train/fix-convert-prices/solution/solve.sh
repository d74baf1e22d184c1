#!/bin/bash
set -e
cd /app
patch=$(mktemp)
cat >"$patch" <<'EOF'
diff --git a/farm/rules.py b/farm/rules.py
--- a/farm/rules.py
+++ b/farm/rules.py
@@ -1,5 +1,5 @@
 def convert_prices(t, y):
-    r = t + 11
+    r = t * 11
     return r + y
 
 def sum_tasks(arr):
EOF
git apply "$patch"
rm "$patch"
