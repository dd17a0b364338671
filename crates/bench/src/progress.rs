//! How far the bench is: a bar on a terminal, a line now and then elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    total: u64,
}

impl Progress {
    pub fn new(sections: usize) -> Progress {
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

    pub fn begun(&self) -> usize {
        self.bar.position() as usize
    }

    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}
