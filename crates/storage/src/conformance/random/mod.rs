//! Random histories, compared with the model after every step; a failing one is made short.

mod op;
mod player;
mod prng;
mod shrink;

use super::{Check, Factory, Failure};
use op::Op;
use player::Player;
use prng::Prng;

const LAW: &str = "random history";

/// Plays a random list of `ops` operations on the engine and on the model. A failure names the seed,
/// the command that replays it, and the shortest list found that still fails.
pub fn random<F: Factory>(factory: &F, seed: u64, ops: usize) -> Result<(), Failure> {
    let history = generate(seed, ops);
    let Err(first) = play(factory, seed, &history) else { return Ok(()) };
    let short = shrink::shrink(history, |candidate| play(factory, seed, candidate).is_err());
    let last = play(factory, seed, &short).err().unwrap_or_else(|| first.clone());
    let steps: String = short.iter().map(|op| format!("\n  {op:?}")).collect();
    let detail = format!(
        "{}\nreplay: STELE_SEED={seed} {}\nfirst seen as: {}\nshortest history:{steps}",
        last.detail,
        factory.replay_command(),
        first.detail
    );
    Err(Failure { law: LAW, detail })
}

fn generate(seed: u64, ops: usize) -> Vec<Op> {
    let mut prng = Prng::new(seed);
    (0..ops).map(|_| Op::draw(&mut prng)).collect()
}

fn play<F: Factory>(factory: &F, seed: u64, history: &[Op]) -> Check {
    let mut player = Player::new(factory, seed)?;
    for (step, op) in history.iter().enumerate() {
        player = player.step(op).map_err(|failure| Failure {
            law: LAW,
            detail: format!("step {step}, {op:?}: {}", failure.detail),
        })?;
    }
    player.finish()
}
