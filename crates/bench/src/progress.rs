//! How far the bench is: a bar on a terminal, a line now and then elsewhere.

use crate::text::wrap;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Of the narrowest terminal that has room for it.
const COLUMNS: usize = 80;

/// A time in whole seconds, or in minutes.
pub fn spelled(time: Duration) -> String {
    match time.as_secs_f64().ceil() {
        s if s <= 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} minutes", (s / 60.0).ceil()),
    }
}

/// The note of a part that is missing.
pub fn unfinished(why: &String) -> String {
    format!("not measured to the end: {why}")
}

/// Why later runs are missing.
pub fn interrupted(whole_runs: usize) -> String {
    format!("run {} was interrupted; those before it count", whole_runs + 1)
}

pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    total: u64,
}

impl Progress {
    /// Says how long it will take.
    pub fn new(sections: usize, how_long: &str) -> Progress {
        let told = format!("{sections} sections, {how_long}; nothing is asked meanwhile, and Ctrl-C ends it");
        eprintln!("{}", wrap(&told, COLUMNS, 2));
        let terminal = std::io::stderr().is_terminal();
        // Drawn between sections only: a drawing thread would share the processor with the
        // measurement.
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(sections as u64), target);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3}%  {elapsed}  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, terminal, total: sections as u64 }
    }

    /// There are more sections than was said.
    pub fn extend(&mut self, sections: usize) {
        self.total += sections as u64;
        self.bar.set_length(self.total);
    }

    pub fn section(&self, what: &str) {
        let done = self.bar.position();
        self.bar.set_message(what.to_owned());
        if !self.terminal && done.is_multiple_of((self.total / 6).max(1)) {
            eprintln!("{:>3} %  {what}", 100 * done / self.total.max(1));
        }
        self.bar.inc(1);
    }

    /// After the first of `runs`, where only that tells how long all take.
    pub fn first_run(&self, took: Duration, runs: usize) {
        if runs > 1 {
            self.bar.suspend(|| {
                eprintln!("the first run took {}: {} to go", spelled(took), spelled(took * (runs as u32 - 1)))
            });
        }
    }

    pub fn begun(&self) -> usize {
        self.bar.position() as usize
    }

    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let times = [Duration::from_millis(1200), Duration::from_secs(90), Duration::from_secs(200)];
        assert_eq!(times.map(spelled), ["2 s", "90 s", "4 minutes"]);
    }
}
