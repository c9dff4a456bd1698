// Runs go-ycsb's workloads through its unmodified TiKV driver and counts failed operations.
//
//	ycsb -cmd load|run -p tikv.pd=HOST:PORT [-p KEY=VALUE]...
//
// The last line is one JSON object; the exit status is 1 if any operation failed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	"github.com/pingcap/go-ycsb/pkg/prop"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	_ "github.com/pingcap/go-ycsb/db/tikv"
)

type settings []string

func (s *settings) String() string       { return strings.Join(*s, " ") }
func (s *settings) Set(one string) error { *s = append(*s, one); return nil }

type outcome struct {
	Command    string  `json:"command"`
	Operations int64   `json:"operations"`
	Errors     int64   `json:"errors"`
	Missing    int64   `json:"missing"` // reads that found nothing
	Seconds    float64 `json:"seconds"`
	PerSecond  float64 `json:"per_second"`
}

func main() {
	var given settings
	command := flag.String("cmd", "run", "load or run")
	flag.Var(&given, "p", "KEY=VALUE")
	flag.Parse()
	found, err := run(*command, given)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ycsb:", err)
		os.Exit(2)
	}
	line, _ := json.Marshal(found)
	fmt.Println(string(line))
	if found.Errors > 0 {
		os.Exit(1)
	}
}

func run(command string, given settings) (outcome, error) {
	p := properties.NewProperties()
	for _, one := range given {
		key, value, found := strings.Cut(one, "=")
		if !found {
			return outcome{}, fmt.Errorf("-p needs KEY=VALUE, not %q", one)
		}
		if _, _, err := p.Set(key, value); err != nil {
			return outcome{}, err
		}
	}
	for key, value := range map[string]string{
		prop.DoTransactions: fmt.Sprint(command == "run"),
		prop.Command:        command,
		prop.TableName:      p.GetString(prop.TableName, prop.TableNameDefault),
	} {
		if _, _, err := p.Set(key, value); err != nil {
			return outcome{}, err
		}
	}
	measurement.InitMeasure(p)
	workload, err := ycsb.GetWorkloadCreator(p.GetString(prop.Workload, "core")).Create(p)
	if err != nil {
		return outcome{}, err
	}
	driver, err := ycsb.GetDBCreator("tikv").Create(p)
	if err != nil {
		return outcome{}, err
	}
	counted := &counting{DB: driver}
	started := time.Now()
	client.NewClient(p, workload, client.DbWrapper{DB: counted}).Run(context.Background())
	took := time.Since(started).Seconds()
	measurement.Output()
	done := counted.operations.Load()
	return outcome{
		Command: command, Operations: done, Errors: counted.errors.Load(), Missing: counted.missing.Load(),
		Seconds: took, PerSecond: float64(done) / took,
	}, nil
}
