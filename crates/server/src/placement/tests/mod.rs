mod decisions;
mod explain;
mod fake;
mod lookups;
mod merges;
mod reports;
