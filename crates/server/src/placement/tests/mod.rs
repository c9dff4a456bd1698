mod decisions;
mod fake;
mod lookups;
mod owners;
mod reports;
