package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// groupKeysMax is the maximum number of keys in a group.
const groupKeysMax = 8

// state holds the value of each key of a group, by key order; 0 for a missing key. All keys are
// missing at first.
type state [groupKeysMax]int32

type pair struct {
	key   int
	value int32
}

// call is an operation with its keys and values as numbers.
type call struct {
	record   *record
	key      int
	value    int32
	expected int32
	found    int32
	pairs    []pair
	keys     int // number of keys in the group
}

// operations converts the records of a group. Keys are numbered in key order, so that a scan visits
// them by number.
func operations(records []*record) ([]porcupine.Operation, error) {
	keys := map[string]int{}
	for _, one := range records {
		if one.Kind != "scan" {
			keys[one.Key] = 0
		}
		for _, pair := range one.Pairs {
			keys[pair[0]] = 0
		}
	}
	if len(keys) > groupKeysMax {
		return nil, fmt.Errorf("group %q has %d keys, more than %d", records[0].Group, len(keys), groupKeysMax)
	}
	ordered := make([]string, 0, len(keys))
	for key := range keys {
		ordered = append(ordered, key)
	}
	sort.Strings(ordered)
	for number, key := range ordered {
		keys[key] = number
	}
	values := map[string]int32{}
	number := func(value *string) int32 {
		if value == nil {
			return 0
		}
		if _, known := values[*value]; !known {
			values[*value] = int32(len(values) + 1)
		}
		return values[*value]
	}
	result := make([]porcupine.Operation, 0, len(records))
	for _, one := range records {
		input := call{
			record: one, key: keys[one.Key], keys: len(ordered),
			value: number(one.Value), expected: number(one.Expected), found: number(one.Found),
		}
		for i := range one.Pairs {
			input.pairs = append(input.pairs, pair{keys[one.Pairs[i][0]], number(&one.Pairs[i][1])})
		}
		result = append(result, porcupine.Operation{
			ClientId: one.Process, Input: &input, Call: one.CallNs, Return: one.ReturnNs,
		})
	}
	return result, nil
}

// model returns a group of registers with compare-and-swap and atomic scans.
func model() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return state{} },
		Step: func(before, input, _ interface{}) (bool, interface{}) {
			return step(before.(state), input.(*call))
		},
		DescribeOperation: func(input, _ interface{}) string { return describe(input.(*call)) },
	}
}

func step(now state, c *call) (bool, state) {
	switch c.record.Kind {
	case "put":
		now[c.key] = c.value
		return true, now
	case "delete":
		now[c.key] = 0
		return true, now
	case "get":
		return now[c.key] == c.found, now
	case "cas":
		matches := now[c.key] == c.expected
		if !c.record.Ambiguous && (matches != c.record.Succeeded || now[c.key] != c.found) {
			return false, now
		}
		if matches {
			now[c.key] = c.value
		}
		return true, now
	case "scan":
		return scanned(now, c), now
	}
	return false, now
}

// scanned returns whether a scan of the whole group in this state finds these pairs.
func scanned(now state, c *call) bool {
	at := 0
	for i := 0; i < c.keys; i++ {
		key := i
		if c.record.Reverse {
			key = c.keys - 1 - i
		}
		if now[key] == 0 {
			continue
		}
		if at == c.record.Limit {
			return true
		}
		if at >= len(c.pairs) || c.pairs[at] != (pair{key, now[key]}) {
			return false
		}
		at++
	}
	return at == len(c.pairs)
}

func describe(c *call) string {
	text := func(value *string) string {
		if value == nil {
			return "-"
		}
		return *value
	}
	one := c.record
	open := ""
	if one.Ambiguous {
		open = " ?"
	}
	switch one.Kind {
	case "put":
		return fmt.Sprintf("put(%s, %s)%s", one.Key, text(one.Value), open)
	case "cas":
		return fmt.Sprintf("cas(%s, %s to %s) = %v, was %s%s",
			one.Key, text(one.Expected), text(one.Value), one.Succeeded, text(one.Found), open)
	case "scan":
		var pairs []string
		for _, pair := range one.Pairs {
			pairs = append(pairs, pair[0]+"="+pair[1])
		}
		return fmt.Sprintf("scan(%s) = %s", one.Group, strings.Join(pairs, " "))
	}
	return fmt.Sprintf("%s(%s) = %s%s", one.Kind, one.Key, text(one.Found), open)
}
