#!/usr/bin/env bash
# Go 1.26.8 (crypto/x509), beside OpenSSL 3.0 and cryptography 46.0.3: one URI among the names of a certificate makes
# Go refuse the whole certificate.
#
# Guess: a URI among the alternative names concerns only what looks for URIs; a client that checks a DNS name ignores
# it.
# Seen: Go parses the host of each URI as a domain name when it reads the certificate. With `a..b` or `a.b.` as host,
# which RFC 3986 allows (a host is any text of unreserved characters), reading fails: `x509: cannot parse URI
# "stele://a..b/x": invalid domain`. `a.b` and `-a.b_` are read. OpenSSL and cryptography read all four.
# What a user meets: a server with such a URI in its certificate works with clients in other languages, and every
# client in Go ends the handshake because the certificate cannot be parsed.
# Remedy: names in URIs of certificates have letters, digits, `-`, `_` and single dots between them.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

python3 -m venv venv
venv/bin/pip -q install cryptography==46.0.3
cat > parse.go <<'GO'
package main

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

func main() {
	text, _ := os.ReadFile(os.Args[1])
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	fmt.Println("read:", certificate.URIs[0])
}
GO
cat > parse.py <<'PY'
import sys
from cryptography import x509
certificate = x509.load_pem_x509_certificate(open(sys.argv[1], "rb").read())
names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
print("read:", names.get_values_for_type(x509.UniformResourceIdentifier)[0])
PY
GOTOOLCHAIN=go1.26.8 go build -o parse parse.go
GOTOOLCHAIN=go1.26.8 go version

failed=0
check() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 2 \
        -subj /CN=test -addext "subjectAltName=DNS:localhost,URI:$1" 2>/dev/null
    go_says=$(./parse cert.pem)
    python_says=$(venv/bin/python parse.py cert.pem)
    openssl x509 -in cert.pem -noout -text | grep -q "URI:$1" || { echo "openssl does not show $1"; failed=1; }
    echo "$1 | go: $go_says | cryptography: $python_says"
    [[ $go_says == $2* && $python_says == "read: $1" ]] || failed=1
}
check "stele://a.b/x" "read:"
check "stele://a..b/x" "refused: x509: cannot parse URI"
check "stele://a.b./x" "refused: x509: cannot parse URI"
check "stele://-a.b_/x" "read:"
exit $failed
