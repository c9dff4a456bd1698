//! Runs seeds and prints the outcomes.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use stele_sim::args::{Args, replay};
use stele_sim::minimise::minimise;
use stele_sim::plan::{MS, Plan};
use stele_sim::run::{Outcome, Wanted, run};
use stele_sim::world::Counts;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    std::panic::set_hook(Box::new(|_| {}));
    match run_all(&args) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs the seeds. Returns the number that ended in a violation.
fn run_all(args: &Args) -> u64 {
    let started = Instant::now();
    let limit = args.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let mut totals = Counts::default();
    let (mut seeds, mut nanos, mut violations) = (0, 0, 0);
    for seed in args.seeds.clone() {
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            break;
        }
        let plan = args.plan(seed);
        let wanted = Wanted {
            trace: args.trace.is_some(),
            lines: args.lines,
            history: args.history.is_some(),
            plants: args.plants,
        };
        let outcome = run(&plan, wanted);
        if !args.is_quiet {
            println!("{}", line(&plan, &outcome));
        }
        write_files(args, &outcome);
        if args.history.is_some() {
            println!("refused groups: {}", outcome.refused.join(" "));
        }
        totals.add(&outcome.counts);
        nanos += outcome.nanos;
        seeds += 1;
        if let Some(violation) = &outcome.violation {
            violations += 1;
            print_violation(args, &plan, &outcome, violation);
            if !args.keeps_going {
                break;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {violations} violations, {:.0} virtual s in {seconds:.1} s: {}",
        nanos as f64 / 1e9,
        numbers(&totals)
    );
    violations
}

fn line(plan: &Plan, outcome: &Outcome) -> String {
    let verdict = if outcome.violation.is_some() { "VIOLATION" } else { "ok" };
    format!(
        "seed {} {verdict}: {} nodes, {} stores, {}, {:.1} virtual s, hash {:016x}",
        plan.seed,
        plan.nodes,
        plan.stores(),
        numbers(&outcome.counts),
        outcome.nanos as f64 / 1e9,
        outcome.hash
    )
}

fn numbers(counts: &Counts) -> String {
    let Counts { ops, ambiguous, power_cuts, kills, failures, replaced, .. } = counts;
    let Counts { partitions, corruptions, disk_faults, snapshots, resumed, splits, .. } = counts;
    let Counts { merges, leaders, slices, overspent, entries_recovered, .. } = counts;
    let Counts {
        handed_over,
        transfers,
        lookups,
        moves,
        moves_most,
        nearly_full,
        cut_searches,
        ..
    } = counts;
    let Counts { slowed_writes, slowed_nanos_most, .. } = counts;
    let Counts { lost_majorities, moments_begun, moments, moments_of_deposed, .. } = counts;
    let Counts { entries_followed, copies_followed, in_sessions, repeated, .. } = counts;
    let Counts { levels_raised, above_level, .. } = counts;
    let Counts { programs, programs_of_several, program_lookups, programs_unknown, .. } = counts;
    let Counts { redis_commands, sweeps, .. } = counts;
    let Counts { transactions_begun, transactions, transactions_refused, .. } = counts;
    let Counts { transactions_unknown, coordinators_stopped, intents_met, .. } = counts;
    let slowed_ms_most = slowed_nanos_most / MS;
    let Counts { copied_directories, moved_directories, restored_directories, .. } = counts;
    format!(
        "{ops} ops ({ambiguous} ambiguous), {power_cuts} power cuts, {kills} kills, {failures} \
         failures, {replaced} disks replaced, {partitions} partitions, {corruptions} corruptions, \
         {disk_faults} disk faults, {snapshots} snapshots ({resumed} resumed), {splits} splits, \
         {merges} merges, {leaders} leaders ({transfers} by transfers), {slices} slices, {overspent} disks over budget, \
         {entries_recovered} entries recovered, {handed_over} leaders handed over, {lookups} lookups, \
         {moves} moves, {moves_most} of one region in a minute, {nearly_full} reports of nearly full \
         stores, {slowed_writes} writes waited ({slowed_ms_most} ms the longest), {lost_majorities} majorities lost, {cut_searches} searches for an order cut, {copied_directories} copied, {moved_directories} moved \
         and {restored_directories} restored directories, {moments} of {moments_begun} moments, \
         {moments_of_deposed} answers of deposed leaders, \
         {entries_followed} entries followed from {copies_followed} copies, {in_sessions} requests of sessions \
         ({repeated} repetitions), {levels_raised} nodes with a raised level, {above_level} refusals before, \
         {programs} programs ({programs_of_several} sent of several keys, {program_lookups} lookups, \
         {programs_unknown} unknown), {redis_commands} Redis commands, {sweeps} sweeps, {transactions} of \
         {transactions_begun} transactions ({transactions_refused} refused, {transactions_unknown} unknown, \
         {coordinators_stopped} coordinators stopped, {intents_met} intents met)"
    )
}

fn print_violation(args: &Args, plan: &Plan, outcome: &Outcome, violation: &str) {
    println!("VIOLATION {violation}");
    println!("  {}", replay(plan));
    if !args.minimises {
        println!("{}", outcome.tail);
        return;
    }
    let (shorter, message) = minimise(plan, violation);
    println!("minimised: {message}");
    println!("  {}", replay(&shorter));
    println!("{}", run(&shorter, Wanted::default()).tail);
}

fn write_files(args: &Args, outcome: &Outcome) {
    let files = [(&args.trace, &outcome.perfetto), (&args.history, &outcome.history)];
    for (path, text) in files {
        if let (Some(path), Some(text)) = (path, text)
            && let Err(error) = std::fs::write(path, text)
        {
            eprintln!("{} was not written: {error}", path.display());
        }
    }
}
