#!/bin/sh
# Fills the empty server at a port of this machine, and keeps its file: make.sh PORT FILE
set -eu
port=$1
file=$2
# Commands that a server does not know are left out.
cli() { redis-cli -p "$port" "$@" > /dev/null; }
pairs() { i=0; while [ $i -lt "$1" ]; do printf 'f%s v%s ' $i $i; i=$((i + 1)); done; }
members() { i=0; while [ $i -lt "$1" ]; do printf 'm%s ' $i; i=$((i + 1)); done; }

cli SET text plain
cli SET text:empty ''
cli SET text:int8 -7
cli SET text:int16 12345
cli SET text:int32 1234567890
cli SET text:int64 123456789012
cli SET text:compressed "$(printf 'abc%.0s' $(seq 1000))"
cli SET text:expiring soon PXAT 4102444800123
cli HSET hash:small f1 v1 f2 v2 n 42
# shellcheck disable=SC2046
cli HSET hash:large $(pairs 600)
cli HSET hash:wide f "$(printf 'w%.0s' $(seq 100))"
cli HSET hash:expiring f v
cli PEXPIREAT hash:expiring 4102444800456
cli SADD set:ints 1 2 3 -5
cli SADD set:wide-ints 1 12345678901
cli SADD set:small a b c
# shellcheck disable=SC2046
cli SADD set:large $(members 700)
cli -n 3 SET other 'of database 3'
cli -n 15 SADD last member

cli RPUSH list a b c 4
cli ZADD zset 1 a 2.5 b
cli XADD stream '*' field value
cli XGROUP CREATE stream group 0
cli XREADGROUP GROUP group consumer STREAMS stream '>'

# Fields with an expiry: in one string, and each for itself.
cli HSET hash:fields f1 v1 f2 v2
cli HPEXPIREAT hash:fields 4102444800789 FIELDS 1 f1
cli HSET hash:fields-wide f1 v1 f2 "$(printf 'w%.0s' $(seq 100))"
cli HPEXPIREAT hash:fields-wide 4102444800789 FIELDS 1 f1

cli SAVE
directory=$(redis-cli -p "$port" CONFIG GET dir | tail -n 1)
cp "$directory/dump.rdb" "$file"
