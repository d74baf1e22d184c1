#!/bin/bash
set -e
cd /app/photos
for name in IMG_????????_*.jpg; do
  date=${name:4:8}
  folder=${date:0:4}/${date:4:2}
  mkdir -p "$folder"
  mv "$name" "$folder/${date:6:2}_${name:13}"
done
