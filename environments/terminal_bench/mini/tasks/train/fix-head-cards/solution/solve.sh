#!/bin/bash
set -e
cd /app
patch=$(mktemp)
cat >"$patch" <<'EOF'
diff --git a/farm/data.py b/farm/data.py
--- a/farm/data.py
+++ b/farm/data.py
@@ -9,4 +9,4 @@
     return sum(arr) / len(arr)
 
 def head_cards(arr, y):
-    return arr[:y + 1]
+    return arr[:y]
EOF
git apply "$patch"
rm "$patch"
