//! The first words of a page: for each workload a sentence that says which engine won and by how
//! much; and the meaning of FULL and NORMAL.

use crate::numbers::stats::{Known, Ratio};
use crate::text::thousands;

/// Before the numbers of every page that has both.
pub const LEVELS: &str = "FULL: a commit that has returned survives a power cut. NORMAL is named apart from the winner: a power cut \
     may take, of stock's WAL mode, the commits since the last checkpoint, and of onewrite those since the last checkpoint, \
     FULL commit or second of rest; never the database.";

#[derive(Clone, Debug)]
pub struct Contender {
    pub name: String,
    /// Operations per second: the median, and run by run.
    pub rate: f64,
    pub runs: Vec<f64>,
    /// Whether its commits survive a power cut.
    pub durable: bool,
}

/// Which of these won, and by how much. `unit`: of the rates, as in `transactions`.
pub fn sentence(workload: &str, unit: &str, all: &[Contender]) -> Option<String> {
    let best_of = |durable: bool| {
        let mut of: Vec<&Contender> = all.iter().filter(|c| c.durable == durable).collect();
        of.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        of
    };
    let (durable, others) = (best_of(true), best_of(false));
    let first = durable.first()?;
    let mark = |c: &Contender| if Known::of(&c.runs).is_some_and(|known| known.steady) { "" } else { "~" };
    let mut text = match durable.get(1) {
        None => format!("{workload}: {} alone, with {}{} {unit}/s.", first.name, number(first.rate), mark(first)),
        Some(next) => {
            let ratio = Ratio::paired(&first.runs, &next.runs);
            let by = ratio.map_or(first.rate / next.rate, |r| r.median);
            let rate = format!("{}{}", number(first.rate), mark(first));
            let next_rate = format!("{}{}", number(next.rate), mark(next));
            let is_safe = ratio.is_some_and(|r| r.safe) && mark(first).is_empty() && mark(next).is_empty();
            if ratio.is_some_and(|r| r.confidence > 0.0 && r.low <= 1.0) {
                format!(
                    "{workload}: no engine won for certain; {} with {rate} {unit}/s and {} with {next_rate} are within the \
                     differences between runs.",
                    first.name, next.name
                )
            } else if is_safe {
                format!("{workload}: {} won, with {rate} {unit}/s, {by:.2} times {}.", first.name, next.name)
            } else {
                format!(
                    "{workload}: {} was ahead, which is not safe to quote (~), with {rate} {unit}/s, {by:.2}~ times {}.",
                    first.name, next.name
                )
            }
        }
    };
    if let Some(other) = others.first().filter(|o| o.rate > first.rate) {
        let mark = if mark(first).is_empty() { mark(other) } else { "~" };
        text += &format!(" Not durable, but {:.1}{mark} times as fast: {}.", other.rate / first.rate, other.name);
    }
    Some(text)
}

fn number(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { thousands(rate) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(name: &str, runs: &[f64], durable: bool) -> Contender {
        let rate = crate::numbers::measure::median(runs.iter().copied()).unwrap();
        Contender { name: name.to_owned(), rate, runs: runs.to_vec(), durable }
    }

    #[test]
    fn the_winner_is_durable_and_ahead_of_the_noise() {
        let slow = contender("wal", &[100.0, 101.0, 99.0, 100.0, 100.0], true);
        let fast = contender("log", &[150.0, 151.0, 149.0, 150.0, 150.0], true);
        let loose = contender("normal", &[900.0; 5], false);
        let text = sentence("insert", "transactions", &[slow.clone(), fast, loose]).unwrap();
        assert_eq!(
            text,
            "insert: log won, with 150 transactions/s, 1.50 times wal. Not durable, but 6.0 times as fast: normal."
        );
        let same = contender("log", &[105.0, 95.0, 103.0, 104.0, 106.0], true);
        assert!(sentence("insert", "transactions", &[slow.clone(), same]).unwrap().contains("no engine won"));
        let once = [contender("a", &[2.0], true), contender("b", &[1.0], true)];
        assert!(
            sentence("x", "transactions", &once)
                .unwrap()
                .contains("a was ahead, which is not safe to quote (~), with 2.0~"),
            "one run is not safe to quote"
        );
        assert!(sentence("x", "transactions", &[slow]).unwrap().contains("alone"));
        assert_eq!(sentence("x", "transactions", &[]), None);
    }
}
