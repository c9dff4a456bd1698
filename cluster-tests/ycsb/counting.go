package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/pingcap/go-ycsb/pkg/ycsb"
)

// shownMax is the maximum number of errors printed.
const shownMax = 10

// counting is a driver that counts operations and errors.
type counting struct {
	ycsb.DB
	operations, errors, missing atomic.Int64
}

func (c *counting) count(what, key string, err error) error {
	c.operations.Add(1)
	if err != nil && c.errors.Add(1) <= shownMax {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", what, key, err)
	}
	return err
}

func (c *counting) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	row, err := c.DB.Read(ctx, table, key, fields)
	if err == nil && row == nil {
		c.missing.Add(1)
	}
	return row, c.count("read", key, err)
}

func (c *counting) Scan(ctx context.Context, table, start string, count int, fields []string) ([]map[string][]byte, error) {
	rows, err := c.DB.Scan(ctx, table, start, count, fields)
	return rows, c.count("scan", start, err)
}

func (c *counting) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	return c.count("update", key, c.DB.Update(ctx, table, key, values))
}

func (c *counting) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	return c.count("insert", key, c.DB.Insert(ctx, table, key, values))
}

func (c *counting) Delete(ctx context.Context, table, key string) error {
	return c.count("delete", key, c.DB.Delete(ctx, table, key))
}
