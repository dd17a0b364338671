//! Canaries: cases of the rules that a test can break, one at a time, so that a campaign must
//! notice.
//!
//! Without the feature `canary`, [`keeps`] is a constant; with it, the thread decides.

/// Declares [`Case`], its list and its rules from one list, so that none is forgotten.
macro_rules! cases {
    ($($rule:ident { $($(#[$doc:meta])* $case:ident,)+ })+) => {
        /// A case of a rule of `docs/commit.md` or `docs/research.md`, by its name there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Case {
            $($($(#[$doc])* $case,)+)+
        }

        impl Case {
            /// Every case.
            pub const ALL: [Case; [$($(Case::$case),+),+].len()] = [$($(Case::$case),+),+];

            /// The rule, or omission, of the case.
            pub const fn rule(self) -> &'static str {
                match self {
                    $($(Case::$case)|+ => stringify!($rule),)+
                }
            }
        }
    };
}

cases! {
    AcknowledgedWhenDurable {
        /// I1: a commit under FULL returns after its flush.
        AcknowledgedAfterFlush,
        /// An empty commit flushes the state below it.
        EmptyCommitFlushes,
    }
    SeenWhenDurable {
        /// All processes' readers see a transaction at once.
        SeenByAllAtOnce,
    }
    Poisons {
        /// A failed write or flush poisons.
        Poisons,
        /// A failed write or flush poisons every process.
        PoisonTold,
    }
    WholeTransaction {
        /// A record counts only with all of its streamed images.
        StreamedWhole,
        /// Pages behind FCNTL_SYNC commit with the transaction.
        LateWritesCommitted,
    }
    AbsoluteBytes {
        /// A page beyond the previous end starts from zeros.
        ZerosBeyondEnd,
    }
    RecordChain {
        /// A record chains by salt, TID and checksum.
        RecordChain,
    }
    OneNumberOneState {
        /// No earlier log or home fits behind a recovery.
        NewSession,
    }
    DamageIsTold {
        /// A later record proves a broken one damaged.
        LaterRecordProves,
    }
    WrittenAgain {
        /// Recovery rewrites live records before home.
        RecordsRewritten,
        /// Recovery flushes the slot that counts and the names.
        LeftoversFlushed,
    }
    LogBeforeHome {
        /// Home gets only pages durable in the log.
        HomeNotAheadOfLog,
    }
    HomeBeforeSlot {
        /// Home is flushed before the slot moves.
        HomeBeforeSlot,
        /// The slot moves when all of a sweep's pages are home.
        SlotBehindSweep,
    }
    SlotBeforeReuse {
        /// The slot is flushed before anything else.
        SlotFlushed,
        /// The longer ring is durable before its slot.
        RingGrownBeforeSlot,
        /// The small ring's slot is durable before the truncation.
        LogGivenBack,
        /// Others are told of a slot before records it gives up are overwritten.
        SlotTold,
    }
    LogBeforeMark {
        /// I3: the log's name is durable before the mark.
        LogBeforeMark,
        /// I3: the mark is durable before the first record, or with it.
        MarkBeforeRecord,
    }
    MarkWhileNeeded {
        /// Page 1 is always written with the mark.
        MarkStays,
        /// The mark goes when home is complete.
        MarkOffLast,
    }
    HomeFitsLog {
        /// A home and a log of two moments do not fit.
        HomeFitsLog,
    }
    NothingLeftBehind {
        /// The last close leaves nothing readable in the log.
        LogWiped,
    }
    OldImageKept {
        /// I4: images that snapshots read in home are kept before it is overwritten.
        KeptForSnapshots,
        /// Images that other processes read in home are kept before it is overwritten.
        KeptForOthers,
    }
    AnnounceThenLook {
        /// A snapshot is announced before use.
        SnapshotsAnnounced,
    }
    JournalInOrder {
        /// A real journal's removal is durable before its transaction is acknowledged.
        JournalRemovalFlushed,
        /// A real journal's head is written when the rest is durable.
        JournalHeadLast,
    }
    RollbackIsReal {
        /// A hot journal is rolled back before any read.
        HotJournalFirst,
    }
    WalBeforeHome {
        /// A WAL is durable before home is overwritten with it.
        WalBeforeHome,
        /// Home has the WAL's content and has left WAL mode before the WAL goes.
        HomeBeforeWalGoes,
    }
    PreparedThenDecided {
        /// Prepared records are flushed before the decision.
        PreparedFlushed,
        /// The finder of an undecided record looks for the decision.
        UndecidedAsks,
        /// The decision is flushed before anything shows.
        DecisionFlushed,
        /// A decision stays while a file may need it.
        DecisionKept,
    }
    MarkWithFirstRecord {
        /// I3: the first record's flush covers an unflushed mark.
        MarkWithFirstRecord,
        /// A flush of home covers a log with its seal, and no other.
        LogSealed,
    }
    SlotWithFirstRecord {
        /// A session's first flush covers a slot not flushed by itself.
        SlotWithFirstRecord,
    }
    CloseProven {
        /// The close's tombstones prove that the session has ended.
        CloseProven,
        /// The proof of a close stays until the next mark is durable.
        ProofKept,
    }
    FlushedStays {
        /// Recovery flushes nothing where all was flushed, not merely written.
        FlushedStays,
    }
    InPlaceWhenDurable {
        /// In place only when all published is durable.
        InPlaceWhenDurable,
    }
    HeldInPlace {
        /// Home's image is held for snapshots while its page is overwritten in place.
        HeldInPlace,
    }
    SlotsAgree {
        /// Before a write in place, both slots begin at one record.
        SlotsAgree,
    }
    InPlaceRewritten {
        /// Recovery rewrites the page last written in place.
        InPlaceRewritten,
    }
    TrailerSession {
        /// A trailer counts only under its session.
        TrailerSession,
        /// A restored page gets its own checksum.
        RestoredSealed,
    }
    HomeBeforeNext {
        /// While an in-page scheme's log has a record, nothing goes in place.
        HomeBeforeNext,
    }
    SizeHome {
        /// An in-page scheme's checkpoint updates the size on page 1.
        SizeHome,
    }
    SizeLast {
        /// Recovery writes page 1 when the pages it counts are flushed.
        SizeLast,
    }
    ExchangeFlushed {
        /// A file is flushed before it gets the database's name.
        FlushedBeforeExchange,
        /// The exchange is flushed before the file that lost the name is written.
        ExchangeFlushed,
    }
}

/// Whether the case is kept: always.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn keeps(_case: Case) -> bool {
    true
}

#[cfg(feature = "canary")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Case>> = const { std::cell::Cell::new(None) };
}

/// Whether `case` is kept on this thread.
#[cfg(feature = "canary")]
pub fn keeps(case: Case) -> bool {
    BROKEN.get() != Some(case)
}

/// Breaks a case on this thread, or none.
#[cfg(feature = "canary")]
pub fn break_on_this_thread(case: Option<Case>) {
    BROKEN.set(case);
}
