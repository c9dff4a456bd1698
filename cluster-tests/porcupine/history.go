package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// record is one line of a history.
type record struct {
	Process int    `json:"process"`
	Kind    string `json:"op"` // put, get, delete, cas, scan
	// Group of the key. The keys of a group are checked together; no operation spans two groups.
	Group string `json:"group"`
	Key   string `json:"key"`
	// Put: value written. Cas: new value; absent to delete the key.
	Value *string `json:"value"`
	// Cas: expected value; absent if the key must not exist.
	Expected *string `json:"expected"`
	Reverse  bool    `json:"reverse"`
	Limit    int     `json:"limit"`
	// Get and cas: value found; absent if the key did not exist.
	Found     *string     `json:"found"`
	Succeeded bool        `json:"succeeded"`
	Pairs     [][2]string `json:"pairs"`
	// Nanoseconds of a common monotonic clock.
	CallNs   int64 `json:"call_ns"`
	ReturnNs int64 `json:"return_ns"`
	// It is unknown whether the operation took effect or will: its return time is open.
	Ambiguous bool `json:"ambiguous"`
	// The operation certainly had no effect. It is left out, so that an observation of its effect is a
	// violation.
	Refused bool `json:"refused"`
}

// readHistory reads records, one JSON object per line.
func readHistory(from io.Reader) ([]record, error) {
	var records []record
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 1<<16), 1<<24)
	for number := 1; lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var one record
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if one.Refused {
			continue
		}
		if one.Ambiguous {
			one.ReturnNs = math.MaxInt64
		}
		if one.ReturnNs < one.CallNs {
			return nil, fmt.Errorf("line %d returns before it is called", number)
		}
		records = append(records, one)
	}
	return records, lines.Err()
}

// prune removes ambiguous operations that do not matter: reads, and writes of a value that no
// operation observed. Written values are unique, so a history without such a write is linearizable if
// and only if it is with it: no operation between it and the next write observed it, and its return is
// open.
func prune(records []record) []record {
	seen := map[string]bool{}
	for i := range records {
		one := &records[i]
		if one.Found != nil {
			seen[*one.Found] = true
		}
		if one.Kind == "cas" && one.Succeeded && one.Expected != nil {
			seen[*one.Expected] = true
		}
		for _, pair := range one.Pairs {
			seen[pair[1]] = true
		}
	}
	// If the effect of an ambiguous compare-and-swap was observed, it observed its expected value.
	for changed := true; changed; {
		changed = false
		for i := range records {
			one := &records[i]
			effective := one.Kind == "cas" && one.Ambiguous && one.Value != nil && seen[*one.Value]
			if effective && one.Expected != nil && !seen[*one.Expected] {
				seen[*one.Expected] = true
				changed = true
			}
		}
	}
	kept := records[:0:0]
	for _, one := range records {
		unseen := one.Value != nil && !seen[*one.Value]
		reads := one.Kind == "get" || one.Kind == "scan"
		if one.Ambiguous && (reads || unseen) {
			continue
		}
		kept = append(kept, one)
	}
	return kept
}
