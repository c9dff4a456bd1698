// Checks that a history of concurrent operations is linearizable.
//
//	porcupine [-timeout 60s] [-picture FILE.html] HISTORY.jsonl
//
// Exit status: 0 linearizable, 1 not linearizable, 2 unreadable history, 3 undecided at the timeout.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	exitViolation  = 1
	exitUnreadable = 2
	exitUnknown    = 3
)

// verdict is the result, printed as one JSON object.
type verdict struct {
	Result     string   `json:"result"` // ok, violation, unknown
	Operations int      `json:"operations"`
	Ambiguous  int      `json:"ambiguous"`
	Pruned     int      `json:"pruned"`
	Groups     int      `json:"groups"`
	Seconds    float64  `json:"seconds"`
	Suspects   []string `json:"suspects,omitempty"`
	Undecided  []string `json:"undecided,omitempty"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "time limit for the whole history")
	picture := flag.String("picture", "", "`file` for a picture of the first group that is not linearizable")
	flag.Parse()
	found, err := run(flag.Arg(0), *timeout, *picture)
	if err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(exitUnreadable)
	}
	line, _ := json.Marshal(found)
	fmt.Println(string(line))
	switch found.Result {
	case "violation":
		os.Exit(exitViolation)
	case "unknown":
		os.Exit(exitUnknown)
	}
}

func run(path string, timeout time.Duration, picture string) (verdict, error) {
	file, err := os.Open(path)
	if err != nil {
		return verdict{}, err
	}
	defer file.Close()
	records, err := readHistory(file)
	if err != nil {
		return verdict{}, err
	}
	return check(records, timeout, picture)
}

// check checks every group separately, within `timeout` for all of them.
func check(records []record, timeout time.Duration, picture string) (verdict, error) {
	started := time.Now()
	found := verdict{Result: "ok", Operations: len(records)}
	for i := range records {
		if records[i].Ambiguous {
			found.Ambiguous++
		}
	}
	records = prune(records)
	found.Pruned = found.Operations - len(records)
	groups := map[string][]*record{}
	for i := range records {
		groups[records[i].Group] = append(groups[records[i].Group], &records[i])
	}
	found.Groups = len(groups)
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		history, err := operations(groups[name])
		if err != nil {
			return found, err
		}
		left := max(timeout-time.Since(started), time.Millisecond)
		result, info := porcupine.CheckOperationsVerbose(model(), history, left)
		switch result {
		case porcupine.Illegal:
			found.Result = "violation"
			found.Suspects = append(found.Suspects, name)
			if picture != "" && len(found.Suspects) == 1 {
				if err := porcupine.VisualizePath(model(), info, picture); err != nil {
					return found, err
				}
			}
		case porcupine.Unknown:
			found.Undecided = append(found.Undecided, name)
			if found.Result == "ok" {
				found.Result = "unknown"
			}
		}
	}
	found.Seconds = time.Since(started).Seconds()
	return found, nil
}
