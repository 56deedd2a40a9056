#!/bin/sh
# Makes a book of README and docs/ with mdbook: docs/book.sh FOLDER.
#
# The pages link to each other and to files of the repository as they do on a forge, so the book's
# source has the same folders: what is linked lies where it lies here. Only SUMMARY.md, whose links
# are relative to docs/, moves to the top.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
book=${1:?the folder of the book}
if [ -e "$book" ] && [ ! -e "$book/book.toml" ]; then
    echo "book.sh: $book is there and is no book: name a folder that may be replaced" >&2
    exit 1
fi
rm -rf "$book"
mkdir -p "$book/src"
# tests/documents/references.rs reads this list.
for part in README.md README.zh-CN.md CHANGELOG.md CHANGELOG.zh-CN.md CONTRIBUTING.md CONTRIBUTING.zh-CN.md LICENSE Cargo.lock config packaging docs; do
    cp -R "$root/$part" "$book/src/"
done
rm -f "$book/src/docs/book.toml" "$book/src/docs/book.sh" "$book/src/docs/SUMMARY.md"
sed -e 's,](\([^)]*\)),](docs/\1),' -e 's,](docs/\.\./,](,' "$root/docs/SUMMARY.md" >"$book/src/SUMMARY.md"
cp "$root/docs/book.toml" "$book/book.toml"
mdbook build "$book"
echo "$book/html/index.html"
