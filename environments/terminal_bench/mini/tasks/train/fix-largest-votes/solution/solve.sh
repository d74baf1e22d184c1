#!/bin/bash
set -e
cd /app
patch=$(mktemp)
cat >"$patch" <<'EOF'
diff --git a/park/base.py b/park/base.py
--- a/park/base.py
+++ b/park/base.py
@@ -1,7 +1,7 @@
 def largest_votes(xs):
     m = xs[0]
     for v in xs:
-        if v < m:
+        if v > m:
             m = v
     return m
 
EOF
git apply "$patch"
rm "$patch"
