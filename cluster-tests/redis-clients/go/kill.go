package main

import (
	"context"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"time"
)

// Writes each second, while a leader is killed.
const writeInterval = 10 * time.Millisecond

// Time that a write may take.
const writeTimeout = 30 * time.Second

// Time after the last write in which every name must become readable.
const readTimeout = 60 * time.Second

// Writer's record of what it sent.
type writes struct {
	names        []string
	acknowledged []bool
	errors       map[string]int
	pauseMax     time.Duration
}

var digits = regexp.MustCompile(`[0-9]+`)

// Returns the text without what differs between two errors of one kind.
func kindOf(err error) string {
	text := strings.ReplaceAll(digits.ReplaceAllString(err.Error(), "N"), "\n", " ")
	return text[:min(len(text), 160)]
}

// Writes numbered values one at a time for the duration, while the harness kills a leader, then reads each.
func (subject Subject) kill(nodes []string, duration time.Duration) {
	writer, err := subject.writer(nodes)
	if err != nil {
		subject.print("leader killed", "failed", err.Error())
		return
	}
	test := Test{prefix: fmt.Sprintf("%s-killed-%x", subject.name, time.Now().UnixMilli())}
	sent := writeAll(writer, &test, duration)
	lost, err := countLost(writer, sent)
	count := 0
	for _, acknowledged := range sent.acknowledged {
		if acknowledged {
			count++
		}
	}
	text := fmt.Sprintf("errors: %s; longest pause %d ms; acknowledged %d of %d; lost %d", sent.errorText(),
		sent.pauseMax.Milliseconds(), count, len(sent.names), lost)
	switch {
	case err != nil:
		subject.print("leader killed", "failed", text+"; "+err.Error())
	case lost > 0 || count == 0:
		subject.print("leader killed", "failed", text)
	default:
		subject.print("leader killed", "passed", text)
	}
}

func writeAll(writer Writer, test *Test, duration time.Duration) *writes {
	sent := &writes{errors: map[string]int{}}
	end := time.Now().Add(duration)
	last := time.Now()
	for number := 0; time.Now().Before(end); number++ {
		started := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		err := writer.set(ctx, test.name(number), fmt.Sprint(number))
		cancel()
		sent.names = append(sent.names, test.name(number))
		sent.acknowledged = append(sent.acknowledged, err == nil)
		if err == nil {
			sent.pauseMax = max(sent.pauseMax, time.Since(last))
			last = time.Now()
		} else {
			sent.errors[kindOf(err)]++
		}
		time.Sleep(writeInterval - min(writeInterval, time.Since(started)))
	}
	sent.pauseMax = max(sent.pauseMax, time.Since(last))
	return sent
}

// Returns how many acknowledged values are absent or others.
func countLost(writer Writer, sent *writes) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	lost := 0
	for number, name := range sent.names {
		value, found, err := writer.get(ctx, name)
		for err != nil && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			value, found, err = writer.get(ctx, name)
		}
		if err != nil {
			return lost, fmt.Errorf("reading %s: %w", name, err)
		}
		right := found && value == fmt.Sprint(number)
		if !right && (found || sent.acknowledged[number]) {
			lost++
		}
	}
	return lost, nil
}

func (sent *writes) errorText() string {
	if len(sent.errors) == 0 {
		return "none"
	}
	var texts []string
	for text, count := range sent.errors {
		texts = append(texts, fmt.Sprintf("%d × %s", count, text))
	}
	sort.Strings(texts)
	return strings.Join(texts, " | ")
}
