mod answers;
mod decisions;
mod explain;
mod fake;
mod lookups;
mod merges;
mod nodes;
mod reports;
