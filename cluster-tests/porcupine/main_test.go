package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func verdictOf(t *testing.T, lines ...string) string {
	t.Helper()
	records, err := readHistory(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	found, err := check(records, 10*time.Second, "")
	if err != nil {
		t.Fatal(err)
	}
	return found.Result
}

func put(call, end int, key, value string) string {
	return fmt.Sprintf(`{"op":"put","group":"g","key":%q,"value":%q,"call_ns":%d,"return_ns":%d}`, key, value, call, end)
}

func get(call, end int, key, found string) string {
	return fmt.Sprintf(`{"op":"get","group":"g","key":%q,"found":%s,"call_ns":%d,"return_ns":%d}`, key, found, call, end)
}

func scan(call, end int, pairs string) string {
	return fmt.Sprintf(`{"op":"scan","group":"g","limit":9,"pairs":%s,"call_ns":%d,"return_ns":%d}`, pairs, call, end)
}

func cas(call, end int, expected, value, found string, succeeded bool) string {
	return fmt.Sprintf(`{"op":"cas","group":"g","key":"a","expected":%s,"value":%s,"found":%s,"succeeded":%v,"call_ns":%d,"return_ns":%d}`,
		expected, value, found, succeeded, call, end)
}

func refused(line string) string {
	return strings.Replace(line, "{", `{"refused":true,`, 1)
}

func ambiguous(line string) string {
	return strings.Replace(line, "{", `{"ambiguous":true,`, 1)
}

func TestLinearizableHistoriesPass(t *testing.T) {
	for name, lines := range map[string][]string{
		"sequence":      {put(0, 1, "a", "1"), get(2, 3, "a", `"1"`), get(4, 5, "b", "null")},
		"concurrent":    {put(0, 9, "a", "1"), get(1, 2, "a", `"1"`), get(3, 4, "a", `"1"`)},
		"cas":           {cas(0, 1, "null", `"1"`, "null", true), cas(2, 3, `"0"`, `"2"`, `"1"`, false)},
		"scan":          {put(0, 1, "a", "1"), put(2, 3, "b", "2"), scan(4, 5, `[["a","1"],["b","2"]]`)},
		"late write":    {ambiguous(put(0, 1, "a", "1")), get(2, 3, "a", "null"), get(4, 5, "a", `"1"`)},
		"lost write":    {ambiguous(put(0, 1, "a", "1")), get(2, 3, "a", "null")},
		"refused write": {put(0, 1, "a", "1"), refused(put(2, 3, "a", "2")), get(4, 5, "a", `"1"`)},
		"lost write observed by a lost cas": {
			ambiguous(put(0, 1, "a", "1")), ambiguous(cas(2, 3, `"1"`, `"2"`, "null", false)), get(4, 5, "a", `"2"`),
		},
	} {
		if got := verdictOf(t, lines...); got != "ok" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestPlantedViolationsAreFound(t *testing.T) {
	for name, lines := range map[string][]string{
		"stale read":         {put(0, 1, "a", "1"), put(2, 3, "a", "2"), get(4, 5, "a", `"1"`)},
		"lost write":         {put(0, 1, "a", "1"), get(2, 3, "a", "null")},
		"invented value":     {get(0, 1, "a", `"7"`)},
		"refused write seen": {refused(put(0, 1, "a", "1")), get(2, 3, "a", `"1"`)},
		"refused cas seen":   {put(0, 1, "a", "1"), refused(cas(2, 3, `"1"`, `"2"`, "null", false)), get(4, 5, "a", `"2"`)},
		"read went back":     {put(0, 9, "a", "1"), get(1, 2, "a", `"1"`), get(3, 4, "a", "null")},
		"two winners":        {cas(0, 9, "null", `"1"`, "null", true), cas(0, 9, "null", `"2"`, "null", true)},
		"false failure":      {put(0, 1, "a", "1"), cas(2, 3, `"1"`, `"2"`, `"1"`, false)},
		"torn scan":          {put(0, 1, "a", "1"), put(2, 3, "b", "1b"), put(4, 5, "a", "2"), put(6, 7, "b", "2b"), scan(0, 9, `[["a","1"],["b","2b"]]`)},
		"scan missed":        {put(0, 1, "a", "1"), scan(2, 3, `[]`)},
		"write came twice":   {ambiguous(put(0, 1, "a", "1")), get(2, 3, "a", `"1"`), put(4, 5, "a", "2"), get(6, 7, "a", `"1"`), get(8, 9, "a", `"2"`)},
	} {
		if got := verdictOf(t, lines...); got != "violation" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestADeletedKeyIsGone(t *testing.T) {
	gone := `{"op":"delete","group":"g","key":"a","call_ns":2,"return_ns":3}`
	if got := verdictOf(t, put(0, 1, "a", "1"), gone, get(4, 5, "a", "null")); got != "ok" {
		t.Error(got)
	}
	if got := verdictOf(t, put(0, 1, "a", "1"), gone, get(4, 5, "a", `"1"`)); got != "violation" {
		t.Error(got)
	}
	if got := verdictOf(t, put(0, 1, "a", "1"), refused(gone), get(4, 5, "a", "null")); got != "violation" {
		t.Errorf("a refused delete that took effect: %s", got)
	}
}
