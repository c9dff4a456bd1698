mod decisions;
mod fake;
mod lookups;
mod reports;
