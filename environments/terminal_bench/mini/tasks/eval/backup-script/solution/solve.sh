#!/bin/bash
set -e
cat >/app/backup.sh <<'EOF'
#!/bin/bash
set -euo pipefail
source=$1 target=$2
[[ $source == /* ]] || source=./$source
[[ $target == /* ]] || target=./$target
if [[ ! -d $source ]]; then
  echo "no such folder: $source" >&2
  exit 2
fi
count=0
while IFS= read -r -d '' file; do
  copy=$target/${file#"$source"/}.bak
  mkdir -p "$(dirname "$copy")"
  cp "$file" "$copy"
  count=$((count + 1))
done < <(find "$source" -type f -print0)
echo "$count"
EOF
