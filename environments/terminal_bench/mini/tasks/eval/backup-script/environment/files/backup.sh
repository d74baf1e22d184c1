#!/bin/bash
source=$1
target=$2
if [ ! -d $source ]; then
  echo "no such folder: $source"
  exit 1
fi
rm -rf $target
mkdir $target
count=0
for file in $(ls $source); do
  cp $source/$file $target/$file.bak
  count=$((count + 1))
done
echo copied $count files
