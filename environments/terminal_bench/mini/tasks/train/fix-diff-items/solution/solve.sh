#!/bin/bash
set -e
cd /app
patch=$(mktemp)
cat >"$patch" <<'EOF'
diff --git a/farm/data.py b/farm/data.py
--- a/farm/data.py
+++ b/farm/data.py
@@ -1,5 +1,5 @@
 def diff_items(y, c):
-    return abs(y + c)
+    return abs(y - c)
 
 def first_coins(xs):
     return xs[0]
EOF
git apply "$patch"
rm "$patch"
