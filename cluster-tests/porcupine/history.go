package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// One line of a history.
type record struct {
	Process int    `json:"process"`
	Kind    string `json:"op"` // put, get, delete, cas, scan
	// Keys of one group are checked together; operations never touch two groups.
	Group string `json:"group"`
	Key   string `json:"key"`
	// Put: what is written. Cas: what is to be there afterwards; absent: nothing.
	Value *string `json:"value"`
	// Cas: what must be there; absent: nothing.
	Expected *string `json:"expected"`
	Reverse  bool    `json:"reverse"`
	Limit    int     `json:"limit"`
	// Get and cas: what was there; absent: nothing.
	Found     *string     `json:"found"`
	Succeeded bool        `json:"succeeded"`
	Pairs     [][2]string `json:"pairs"`
	// Nanoseconds of one monotonic clock.
	CallNs   int64 `json:"call_ns"`
	ReturnNs int64 `json:"return_ns"`
	// Nobody knows whether it happened, or will: its return is open.
	Ambiguous bool `json:"ambiguous"`
}

// Reads records, one JSON object a line.
func readHistory(from io.Reader) ([]record, error) {
	var records []record
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 1<<16), 1<<24)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var one record
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(records)+1, err)
		}
		if one.Ambiguous {
			one.ReturnNs = math.MaxInt64
		}
		if one.ReturnNs < one.CallNs {
			return nil, fmt.Errorf("line %d returns before it is called", len(records)+1)
		}
		records = append(records, one)
	}
	return records, lines.Err()
}

// Leaves out ambiguous operations that cannot matter: reads, and writes of a value that nobody saw.
// Written values are unique, so a history without such a write is linearizable exactly if it is
// with it: nothing between it and the next write observed it, and its return is open.
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
	// A lost comparison whose effect was seen has seen what it expected.
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
