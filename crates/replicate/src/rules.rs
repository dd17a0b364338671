//! The rules that keep a store's contents right. `fence/model.rs` and `ship/sim.rs` leave out one
//! at a time, and must find an error.

/// A rule, always kept outside of these models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The own record is still there between reading the position and writing behind it.
    CheckPosition,
    /// The first batch of a claim is recorded before it is made, and never removed.
    FirstStays,
    /// The first file of a claim counts when no merged file reaches as far.
    CheckSlot,
    /// A file whose name was taken is another file.
    Beaten,
    /// A promotion makes a file before it uses the state that it has read.
    ShutOut,
    /// A database whose promotion did not end is not shipped.
    Ended,
    /// A process asks for the owner before it merges or removes.
    AskBefore,
    /// Each batch is seen to be there before long, with the one before it.
    BatchesAreThere,
    /// A file is removed only after the file that stands in for it was seen.
    StandInIsThere,
    /// The batches of a merged file are removed newest first.
    NewestFirst,
    /// The store's: a name is given once.
    #[cfg(test)]
    CreateOnce,
    /// The store's: the owner's record is replaced only if it is the one that was read.
    #[cfg(test)]
    ReplaceIfRead,
}

#[cfg(not(test))]
pub(crate) const fn keeps(_: Rule) -> bool {
    true
}

#[cfg(test)]
pub(crate) use model::keeps;

#[cfg(test)]
pub(crate) mod model {
    use super::Rule;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    thread_local! {
        static MODEL: Cell<Option<Option<Rule>>> = const { Cell::new(None) };
    }

    pub(crate) fn keeps(rule: Rule) -> bool {
        MODEL.get().flatten() != Some(rule)
    }

    pub(crate) fn is_on() -> bool {
        MODEL.get().is_some()
    }

    pub(crate) fn keeps_all() -> bool {
        MODEL.get().flatten().is_none()
    }

    /// Whether `run`, under a model checker and without that rule, ends without a panic.
    pub(crate) fn is_right(without: Option<Rule>, run: impl FnOnce()) -> bool {
        MODEL.set(Some(without));
        let result = catch_unwind(AssertUnwindSafe(run));
        MODEL.set(None);
        result.is_ok()
    }
}
