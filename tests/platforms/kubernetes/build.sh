#!/bin/bash
# An API server of Kubernetes from Debian's source package, for run.sh: build.sh FOLDER
#
# No package of Debian or of the Python registry has the server. Debian 12's source package of kubernetes
# (1.20.2) is the last that has its sources; later ones have kubectl alone. The compiler is that of the same
# release. About five minutes on two idle cores, and 2 GB in a temporary folder.
#
# Exit status 3, with the reason on standard output, where it cannot be built.
set -euo pipefail
folder=${1:?the folder for kube-apiserver}
here=$(cd "$(dirname "$0")" && pwd)
version=1.20.5+really1.20.2-1.1+deb12u1

cannot() {
    echo "$*"
    exit 3
}
command -v apt-get >/dev/null || cannot "the API server is built of a Debian source package, and this has no apt"
# The mirror that this machine's own packages come from.
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    sed -n 's/^Debian //p' | grep -v -e security -e backports | sort -u | head -1)
[ -n "$mirror" ] || cannot "no package source of this machine is Debian's"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keyring" ] || cannot "$keyring is missing, which the source package is checked with"
go=/usr/lib/go-1.19
if ! [ -x $go/bin/go ] || ! [ -d /usr/share/gocode/src/github.com/modern-go/reflect2 ] || ! command -v dpkg-source >/dev/null; then
    "$here/../../packages.sh" --no-install-recommends dpkg-dev xz-utils golang-1.19-go golang-github-modern-go-reflect2-dev ||
        cannot "golang-1.19-go and golang-github-modern-go-reflect2-dev cannot be installed (Debian 12 has them)"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/kube-build.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,gopath/src/k8s.io}
echo "deb-src [signed-by=$keyring] $mirror bookworm main" >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
    -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
cd "$work"
"${apt[@]}" update || cannot "$mirror does not answer"
"${apt[@]}" source "kubernetes=$version" >&2 || cannot "the source package kubernetes $version cannot be fetched"
tree=gopath/src/k8s.io/kubernetes
mv kubernetes-*/ "$tree"

export GOROOT=$go GOPATH=$work/gopath GOCACHE=$work/gocache GO111MODULE=off GOFLAGS=-p=2
cd "$tree"
# The tree's own copy, 1.0.1, reads the runtime's memory in a way that Go 1.18 changed: the server dies of
# "fatal error: fault" at its first CustomResourceDefinition.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
# It compares a value with the empty one of its type by their addresses, which are the same for two empty
# texts since Go keeps one for all: a default of "" is then refused as null.
sed -i 's/data == nil || reflect.DeepEqual(reflect.Zero(reflect.TypeOf(data)), reflect.ValueOf(data))/data == nil/' \
    vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go
# The only file that is neither in the package nor made by `go build`.
"$go/bin/go" build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
tagged=$(grep -rl '+k8s:openapi-gen=' --include='*.go' pkg cmd plugin staging/src |
    grep -v -e _examples -e sample- -e /testdata/ | xargs -n1 dirname | sort -u |
    sed -e 's#^staging/src/#vendor/#' -e 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$work/openapi-gen" --go-header-file /dev/null -O zz_generated.openapi \
    --output-package k8s.io/kubernetes/pkg/generated/openapi -i "$tagged" -r "$work/violations"
"$go/bin/go" build -ldflags '-s -w' -o "$work/kube-apiserver" ./cmd/kube-apiserver
mkdir -p "$folder"
mv "$work/kube-apiserver" "$folder/"
