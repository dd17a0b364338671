//! Safety rules that can be broken on purpose, one at a time: a campaign that does not notice is not one.
//!
//! In an ordinary build [`keeps`] is a constant and nothing of this is left; with the feature `canary` the
//! thread decides.

/// Declares [`Rule`] and the list of its variants from one list, so that none can be forgotten.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// A rule of `docs/commit.md`, by its name there, that a crash campaign must miss.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[$doc])* $name,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: [Rule; [$(Rule::$name),+].len()] = [$(Rule::$name),+];
        }
    };
}

rules! {
    /// I1: a commit under FULL is acknowledged after its flush.
    AcknowledgedAfterFlush,
    /// I3: the name of the log is durable before home is marked.
    LogBeforeMark,
    /// I3: the mark is durable before the first record, or with it.
    MarkBeforeRecord,
    /// I3: the first flush of a record covers a mark that was not flushed by itself.
    MarkWithFirstRecord,
    /// What proves that a session has ended is not overwritten before the next mark is durable.
    ProofKept,
    /// A flush of home takes along what is in a log that has its seal, and in no other.
    LogSealed,
    /// I4: images that a snapshot reads in home are kept before home is overwritten.
    KeptForSnapshots,
    /// A page beyond the end of the state before starts from zeros.
    ZerosBeyondEnd,
    /// Home is flushed before the slot says what it holds.
    HomeBeforeSlot,
    /// The slot is flushed before anything else.
    SlotFlushed,
    /// A record chains to the one before by salt, TID and checksum.
    RecordChain,
    /// Home gets nothing that is not durable in the log.
    HomeNotAheadOfLog,
    /// Recovery writes the live records again before it writes home.
    RecordsRewritten,
    /// Recovery flushes nothing where all was flushed, not where it was written alone.
    FlushedStays,
    /// Page 1 carries the mark whenever it is written.
    MarkStays,
    /// A failed write or flush poisons.
    Poisons,
    /// A real journal is gone for good before the transaction beside it is acknowledged.
    JournalRemovalFlushed,
    /// Recovery flushes the slot that counts and the names.
    LeftoversFlushed,
    /// No log or home from before a recovery fits behind it.
    NewSession,
    /// A real journal becomes one when all of it is durable.
    JournalHeadLast,
    /// A commit that changes nothing flushes what it builds on.
    EmptyCommitFlushes,
    /// A later record proves that a broken one is damage and not the end.
    LaterRecordProves,
    /// A hot journal is rolled back before anything is read.
    HotJournalFirst,
    /// The mark comes off when home is complete.
    MarkOffLast,
    /// What a close overwrites says that the session has ended.
    CloseProven,
    /// A record counts only with every image that streamed before it.
    StreamedWhole,
    /// Recovery writes the page again that was last written in place.
    InPlaceRewritten,
    /// Before a page is written in place, both slots begin at the same record.
    SlotsAgree,
    /// Home's image is held for snapshots while a page is overwritten in place.
    HeldInPlace,
    /// In place only when everything published is durable.
    InPlaceWhenDurable,
    /// A trailer counts only under the session it names.
    TrailerSession,
    /// A restored page gets a checksum of its own.
    RestoredSealed,
    /// While the log of an in-page scheme has a record, nothing goes in place.
    HomeBeforeNext,
    /// A checkpoint of an in-page scheme brings the size on page 1 up to date.
    SizeHome,
    /// Recovery brings page 1 home when the pages that it counts are flushed.
    SizeLast,
    /// A file gets the name of the database when it is flushed.
    FlushedBeforeExchange,
    /// The exchange of two names is flushed before the file that lost the name is written.
    ExchangeFlushed,
    /// Pages that come behind FCNTL_SYNC are committed with the transaction.
    LateWritesCommitted,
    /// A home and a log of two moments do not fit.
    HomeFitsLog,
    /// After the last close nothing can be read in the log.
    LogWiped,
    /// The first flush of a session that was begun without one covers its slot.
    SlotWithFirstRecord,
    /// What makes the ring longer is durable before the slot that says so.
    RingGrownBeforeSlot,
    /// The slot of a small ring is durable before the rest is cut off.
    LogGivenBack,
    /// A WAL is durable before home is overwritten with it.
    WalBeforeHome,
    /// Home has the content of the WAL, and has left WAL mode, before the WAL goes.
    HomeBeforeWalGoes,
    /// Readers of a process see a transaction when those of all processes may.
    SeenByAllAtOnce,
    /// A snapshot is announced before it is used.
    SnapshotsAnnounced,
    /// Images that another process reads in home are kept before home is overwritten.
    KeptForOthers,
    /// Others are told of a slot before anything overwrites the records that it gives up.
    SlotTold,
    /// A failed write or flush poisons every process.
    PoisonTold,
    /// A record of a transaction over several files is flushed before the decision.
    PreparedFlushed,
    /// Who finds such a record undecided looks for the decision.
    UndecidedAsks,
    /// The decision is flushed before anything is shown.
    DecisionFlushed,
    /// A decision stays while somebody may ask for it.
    DecisionKept,
    /// The slot gives up the records of a sweep when all of its pages are home.
    SlotBehindSweep,
}

/// Whether `rule` is kept: always.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn keeps(_rule: Rule) -> bool {
    true
}

#[cfg(feature = "canary")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Whether `rule` is kept on this thread.
#[cfg(feature = "canary")]
pub fn keeps(rule: Rule) -> bool {
    BROKEN.get() != Some(rule)
}

/// Breaks a rule on this thread, or keeps all of them again.
#[cfg(feature = "canary")]
pub fn break_on_this_thread(rule: Option<Rule>) {
    BROKEN.set(rule);
}
