mod decisions;
mod explain;
mod fake;
mod lookups;
mod reports;
