#!/bin/bash
set -e
cd /app
patch=$(mktemp)
cat >"$patch" <<'EOF'
diff --git a/bank/stats.py b/bank/stats.py
--- a/bank/stats.py
+++ b/bank/stats.py
@@ -5,7 +5,7 @@
     return any(v > x for v in arr)
 
 def count_above_scores(nums, y):
-    k = 1
+    k = 0
     for v in nums:
         if v > y:
             k += 1
EOF
git apply "$patch"
rm "$patch"
