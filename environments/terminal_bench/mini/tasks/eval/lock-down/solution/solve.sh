#!/bin/bash
set -e
cd /app/service
find . -type d -exec chmod 750 {} +
find . -type f -exec chmod 640 {} +
find keys -type f -exec chmod 600 {} +
find keys -type f -name '*.pub' -exec chmod 644 {} +
find . -type f | while IFS= read -r file; do
  if [ "$(head -c 2 "$file")" = '#!' ]; then chmod 750 "$file"; fi
done
