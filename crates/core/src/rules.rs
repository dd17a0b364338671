//! Safety rules that can be broken on purpose, one at a time: a campaign that does not notice is not one.
//!
//! In an ordinary build [`keeps`] is a constant and nothing of this is left; with the feature `canary` the
//! thread decides.

/// A rule of `docs/commit.md` (or an invariant) that a crash campaign must miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// I1: a commit under FULL is acknowledged after its flush.
    AcknowledgedAfterFlush,
    /// I3: the name of the log is durable before home is marked.
    LogBeforeMark,
    /// I3: the mark is durable before the first record.
    MarkBeforeRecord,
    /// I4 and rule 19: images that a snapshot reads in home are kept before home is overwritten.
    KeptForSnapshots,
    /// Rule 3: a page beyond the end of the state before starts from zeros.
    ZerosBeyondEnd,
    /// Rule 4: home is flushed before the slot says what it holds.
    HomeBeforeSlot,
    /// Rule 4: the slot is flushed before anything else.
    SlotFlushed,
    /// Rule 5: a record chains to the one before by salt, TID and checksum.
    RecordChain,
    /// Rule 6: home gets nothing that is not durable in the log.
    HomeNotAheadOfLog,
    /// Rule 7: recovery writes the live records again before it writes home.
    RecordsRewritten,
    /// Rule 9: page 1 carries the mark whenever it is written.
    MarkStays,
    /// Rule 11: a failed write or flush poisons.
    Poisons,
    /// Rule 12: a real journal is gone for good before the transaction beside it is acknowledged.
    JournalRemovalFlushed,
    /// Rule 14: the slot that counts and the names are flushed by whoever recovers.
    LeftoversFlushed,
    /// Rule 15: a recovery begins a session of its own.
    NewSession,
    /// Rule 16: a real journal becomes one when all of it is durable.
    JournalHeadLast,
    /// Rule 17: a commit that changes nothing flushes what it builds on.
    EmptyCommitFlushes,
    /// Rule 29: a later record proves that a broken one is damage and not the end.
    LaterRecordProves,
    /// Rule 30: a hot journal is rolled back before anything is read.
    HotJournalFirst,
    /// Rule 31: the mark comes off when home is complete.
    MarkOffLast,
    /// Rule 32: a record counts only with every image that streamed before it.
    StreamedWhole,
    /// Rule 34: recovery writes again what was last written in place.
    InPlaceRewritten,
    /// Rule 35: before a page is written in place, both slots begin at the same record.
    SlotsAgree,
    /// Rule 36: home's image is held for snapshots while a page is overwritten in place.
    HeldInPlace,
    /// Rule 37: in place only when everything published is durable.
    InPlaceWhenDurable,
    /// Rule 44: the slot before the newest does not lead to a shorter log.
    SlotsBeforeCut,
    /// Rule 38: a trailer counts only under the session it names.
    TrailerSession,
    /// Rule 39: a restored page gets a checksum of its own.
    RestoredSealed,
    /// Rule 40: while the log of an in-page scheme has a record, nothing goes in place.
    HomeBeforeNext,
    /// Rule 50: a checkpoint of an in-page scheme brings the size on page 1 up to date.
    SizeHome,
    /// Rule 51: recovery brings page 1 home when the pages that it counts are flushed.
    SizeLast,
    /// Rule 47: a file gets the name of the database when it is flushed.
    FlushedBeforeExchange,
    /// Rule 48: the exchange of two names is flushed before the file that lost the name is written.
    ExchangeFlushed,
    /// Rule 75: what is written behind FCNTL_SYNC is committed with the transaction.
    LateWritesCommitted,
    /// Rule 77: a home and a log of two moments do not fit.
    HomeFitsLog,
    /// Rule 78: after the last close nothing can be read in the log.
    LogWiped,
    /// Rule 85: what a WAL holds is durable before home is overwritten with it.
    WalBeforeHome,
    /// Rule 86: home has what the WAL held before it leaves WAL mode, and has left it before the WAL goes.
    HomeBeforeWalGoes,
    /// P1: other processes see a big transaction once it is home.
    BigHomeFirst,
    /// P3: a snapshot is announced before it is used.
    SnapshotsAnnounced,
    /// P4: images that another process reads in home are kept before home is overwritten.
    KeptForOthers,
    /// P5: others are told of a slot before anything overwrites the records that it gives up.
    SlotTold,
    /// P6: a failed write or flush poisons every process.
    PoisonTold,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 43] = [
        Rule::AcknowledgedAfterFlush,
        Rule::LogBeforeMark,
        Rule::MarkBeforeRecord,
        Rule::KeptForSnapshots,
        Rule::ZerosBeyondEnd,
        Rule::HomeBeforeSlot,
        Rule::SlotFlushed,
        Rule::RecordChain,
        Rule::HomeNotAheadOfLog,
        Rule::RecordsRewritten,
        Rule::MarkStays,
        Rule::Poisons,
        Rule::JournalRemovalFlushed,
        Rule::LeftoversFlushed,
        Rule::NewSession,
        Rule::JournalHeadLast,
        Rule::EmptyCommitFlushes,
        Rule::LaterRecordProves,
        Rule::HotJournalFirst,
        Rule::MarkOffLast,
        Rule::StreamedWhole,
        Rule::InPlaceRewritten,
        Rule::SlotsAgree,
        Rule::HeldInPlace,
        Rule::InPlaceWhenDurable,
        Rule::SlotsBeforeCut,
        Rule::TrailerSession,
        Rule::RestoredSealed,
        Rule::HomeBeforeNext,
        Rule::SizeHome,
        Rule::SizeLast,
        Rule::FlushedBeforeExchange,
        Rule::ExchangeFlushed,
        Rule::LateWritesCommitted,
        Rule::HomeFitsLog,
        Rule::LogWiped,
        Rule::WalBeforeHome,
        Rule::HomeBeforeWalGoes,
        Rule::BigHomeFirst,
        Rule::SnapshotsAnnounced,
        Rule::KeptForOthers,
        Rule::SlotTold,
        Rule::PoisonTold,
    ];
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
