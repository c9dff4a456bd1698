//! Random histories, compared with the model after every step. A failing history is shrunk.

mod op;
mod player;

use super::{Factory, Failure};
use op::Op;
use player::Player;
use std::fmt;
use stele_types::Prng;

const LAW: &str = "random history";

/// Runs a random list of `ops` operations on the engine and on the model. A failure contains the
/// seed, the command that replays it, and the shortest list found that still fails in the same way.
pub fn random<F: Factory>(factory: &F, seed: u64, ops: usize) -> Result<(), Failure> {
    let history = generate(seed, ops);
    let Err(first) = play(factory, seed, &history) else { return Ok(()) };
    let fails = |candidate: &[Op]| {
        play(factory, seed, candidate).is_err_and(|broken| broken.kind() == first.kind())
    };
    let short = player::shrink(history, fails);
    let last = play(factory, seed, &short).err().unwrap_or_else(|| first.clone());
    let steps: String = short.iter().map(|op| format!("\n  {op:?}")).collect();
    let replay = factory.replay_command();
    let detail = format!("{last}\nreplay: STELE_SEED={seed} {replay}\nshortest history:{steps}");
    Err(Failure { law: LAW, detail })
}

#[derive(Clone)]
struct Broken {
    step: String,
    what: String,
}

impl Broken {
    /// Returns the failure without its numbers: most likely equal for two occurrences of one bug.
    fn kind(&self) -> String {
        const KIND_CHARS: usize = 40;
        self.what.chars().filter(|c| !c.is_ascii_digit()).take(KIND_CHARS).collect()
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.what)
    }
}

fn generate(seed: u64, ops: usize) -> Vec<Op> {
    let mut prng = Prng::new(seed);
    (0..ops).map(|_| Op::draw(&mut prng)).collect()
}

fn play<F: Factory>(factory: &F, seed: u64, history: &[Op]) -> Result<(), Broken> {
    let broken = |step: String| move |failure: Failure| Broken { step, what: failure.detail };
    let mut player = Player::new(factory, seed).map_err(broken("at the start".into()))?;
    for (number, op) in history.iter().enumerate() {
        player = player.step(op).map_err(broken(format!("step {number}, {op:?}")))?;
    }
    player.finish().map_err(broken("at the end".into()))
}
