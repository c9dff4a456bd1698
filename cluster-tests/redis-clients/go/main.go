// Runs Redis clients of Go and libraries on top of them, unmodified, against the nodes of a cluster.
//
//	redis-clients --nodes HOST:PORT,HOST:PORT,HOST:PORT --phase check|kill --seconds S [--only NAME]
//
// It prints one line of JSON for each result. The exit code is 0 if it ran to its end, whatever the results.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Time that one check may take.
const checkTimeout = 60 * time.Second

// Result is one line of the output.
type Result struct {
	Client  string `json:"client"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Check   string `json:"check"`
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
}

// Check is one test. It returns an error, or a skip with the reason.
type Check struct {
	name string
	run  func(*Test) error
}

// Subject is a client or a library.
type Subject struct {
	name   string
	module string
	kind   string
	checks []Check
	// Opens a connection for the phase `kill`; nil for libraries.
	writer func(nodes []string) (Writer, error)
}

// Writer is what the phase `kill` needs of a client.
type Writer interface {
	set(ctx context.Context, name, value string) error
	// Returns the value, and whether there is one.
	get(ctx context.Context, name string) (string, bool, error)
}

// Skip is the reason why something is not possible.
type Skip struct{ text string }

func (skip Skip) Error() string { return skip.text }

// Test is what a check works with.
type Test struct {
	ctx    context.Context
	nodes  []string
	prefix string
	failed error
}

// Initials of names, so that names are spread over all regions.
const initials = "0123456789abcdefghijklmnopqrstuvwxyz"

// Returns a name that no other test uses. Consecutive numbers lie in different regions.
func (test *Test) name(number int) string {
	return fmt.Sprintf("%c:%s:%d", initials[(number*7)%len(initials)], test.prefix, number)
}

// Returns several names, of which no two have the same initial if they are at most 36.
func (test *Test) names(first, count int) []string {
	names := make([]string, count)
	for index := range names {
		names[index] = test.name(first + index)
	}
	return names
}

// Records a failure unless the value is the expected one and there is no error. The first failure counts.
func (test *Test) same(what string, value any, err error, expected any) {
	if test.failed != nil {
		return
	}
	if err != nil {
		test.failed = fmt.Errorf("%s: %w", what, err)
	} else if !reflect.DeepEqual(value, expected) {
		test.failed = fmt.Errorf("%s: %v (%T) in place of %v (%T)", what, value, value, expected, expected)
	}
}

// Records a failure unless the condition holds.
func (test *Test) holds(what string, condition bool, value any) {
	if test.failed == nil && !condition {
		test.failed = fmt.Errorf("%s: %v", what, value)
	}
}

func versionOf(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "unknown"
}

var output sync.Mutex

func (subject Subject) print(check, outcome, text string) {
	output.Lock()
	defer output.Unlock()
	line, _ := json.Marshal(Result{subject.name, versionOf(subject.module), subject.kind, check, outcome, text})
	fmt.Println(string(line))
}

func (subject Subject) check(check Check, nodes []string) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	word := strings.ReplaceAll(subject.name+"-"+check.name, " ", "-")
	test := &Test{ctx: ctx, nodes: nodes, prefix: fmt.Sprintf("%s-%x", word, time.Now().UnixMilli())}
	err := check.run(test)
	if err == nil {
		err = test.failed
	}
	var skip Skip
	switch {
	case err == nil:
		subject.print(check.name, "passed", "")
	case errors.As(err, &skip):
		subject.print(check.name, "skipped", skip.text)
	default:
		subject.print(check.name, "failed", err.Error())
	}
}

func main() {
	nodes := flag.String("nodes", "", "addresses of the nodes, separated by commas")
	phase := flag.String("phase", "check", "check or kill")
	seconds := flag.Float64("seconds", 20, "duration of the phase kill")
	only := flag.String("only", "", "client or library that runs alone")
	flag.Parse()
	if *nodes == "" || (*phase != "check" && *phase != "kill") {
		fmt.Fprintln(os.Stderr, "--nodes HOST:PORT,… and --phase check|kill are needed")
		os.Exit(2)
	}
	var killed sync.WaitGroup
	for _, subject := range subjects() {
		if *only != "" && *only != subject.name {
			continue
		}
		addresses := strings.Split(*nodes, ",")
		if *phase == "kill" {
			if subject.writer != nil {
				killed.Go(func() { subject.kill(addresses, time.Duration(*seconds*float64(time.Second))) })
			}
			continue
		}
		for _, check := range subject.checks {
			subject.check(check, addresses)
		}
	}
	killed.Wait()
}

func subjects() []Subject {
	return append(append([]Subject{goRedis()}, rueidisClient()), libraries()...)
}
