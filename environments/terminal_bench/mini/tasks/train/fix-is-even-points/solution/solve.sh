#!/bin/bash
set -e
cd /app
patch=$(mktemp)
cat >"$patch" <<'EOF'
diff --git a/game/calc.py b/game/calc.py
--- a/game/calc.py
+++ b/game/calc.py
@@ -5,7 +5,7 @@
     return abs(t - y)
 
 def is_even_points(t):
-    return t % 2 != 0
+    return t % 2 == 0
 
 def convert_users(x, n):
     r = x * 10
EOF
git apply "$patch"
rm "$patch"
