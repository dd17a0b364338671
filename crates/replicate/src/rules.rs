//! What a store's contents rest on, by name: `fence/model.rs` and `ship/sim.rs` leave out one at a time, and miss it.

/// A rule that is kept, outside of those two always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Between reading the position and writing behind it, the own record is still there.
    CheckPosition,
    /// A file counts when the own record is there after it was made.
    CheckClaim,
    /// The first file of a claim counts when nothing merged reaches as far.
    CheckSlot,
    /// A file whose name was taken is not the one that was to be made.
    Beaten,
    /// A promotion makes a file before anything is built on what it has read.
    ShutOut,
    /// What was not promoted to the end is not shipped.
    Ended,
    /// Who merges or removes asks before whose the store is.
    AskBefore,
    /// The newest file is there when the next one is made.
    LastIsThere,
    /// A file is removed only where the one that stands in for it was seen.
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

    /// Whether this thread is the model checker's.
    pub(crate) fn is_on() -> bool {
        MODEL.get().is_some()
    }

    /// Whether all rules are kept.
    pub(crate) fn keeps_all() -> bool {
        MODEL.get().flatten().is_none()
    }

    /// Whether `run`, by a model checker and without that rule, ends without a panic.
    pub(crate) fn is_right(without: Option<Rule>, run: impl FnOnce()) -> bool {
        MODEL.set(Some(without));
        let result = catch_unwind(AssertUnwindSafe(run));
        MODEL.set(None);
        result.is_ok()
    }
}
