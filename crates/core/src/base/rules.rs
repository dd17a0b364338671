//! Cases of the safety rules that can be broken on purpose, one at a time: canaries, which a campaign must notice.
//!
//! In an ordinary build [`keeps`] is a constant and nothing of this is left; with the feature `canary` the
//! thread decides.

/// Declares [`Case`], the list of its variants and their rules from one list, so that none can be forgotten.
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

            /// The name of the rule, or of the omission, whose case it is.
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
        /// I1: a commit under FULL is acknowledged after its flush.
        AcknowledgedAfterFlush,
        /// A commit that changes nothing flushes what it builds on.
        EmptyCommitFlushes,
    }
    SeenWhenDurable {
        /// Readers of a process see a transaction when those of all processes may.
        SeenByAllAtOnce,
    }
    Poisons {
        /// A failed write or flush poisons.
        Poisons,
        /// A failed write or flush poisons every process.
        PoisonTold,
    }
    WholeTransaction {
        /// A record counts only with every image that streamed before it.
        StreamedWhole,
        /// Pages that come behind FCNTL_SYNC are committed with the transaction.
        LateWritesCommitted,
    }
    AbsoluteBytes {
        /// A page beyond the end of the state before starts from zeros.
        ZerosBeyondEnd,
    }
    RecordChain {
        /// A record chains to the one before by salt, TID and checksum.
        RecordChain,
    }
    OneNumberOneState {
        /// No log or home from before a recovery fits behind it.
        NewSession,
    }
    DamageIsTold {
        /// A later record proves that a broken one is damage and not the end.
        LaterRecordProves,
    }
    WrittenAgain {
        /// Recovery writes the live records again before it writes home.
        RecordsRewritten,
        /// Recovery flushes the slot that counts and the names.
        LeftoversFlushed,
    }
    LogBeforeHome {
        /// Home gets nothing that is not durable in the log.
        HomeNotAheadOfLog,
    }
    HomeBeforeSlot {
        /// Home is flushed before the slot says what it holds.
        HomeBeforeSlot,
        /// The slot gives up the records of a sweep when all of its pages are home.
        SlotBehindSweep,
    }
    SlotBeforeReuse {
        /// The slot is flushed before anything else.
        SlotFlushed,
        /// What makes the ring longer is durable before the slot that says so.
        RingGrownBeforeSlot,
        /// The slot of a small ring is durable before the rest is cut off.
        LogGivenBack,
        /// Others are told of a slot before anything overwrites the records that it gives up.
        SlotTold,
    }
    LogBeforeMark {
        /// I3: the name of the log is durable before home is marked.
        LogBeforeMark,
        /// I3: the mark is durable before the first record, or with it.
        MarkBeforeRecord,
    }
    MarkWhileNeeded {
        /// Page 1 carries the mark whenever it is written.
        MarkStays,
        /// The mark comes off when home is complete.
        MarkOffLast,
    }
    HomeFitsLog {
        /// A home and a log of two moments do not fit.
        HomeFitsLog,
    }
    NothingLeftBehind {
        /// After the last close nothing can be read in the log.
        LogWiped,
    }
    OldImageKept {
        /// I4: images that a snapshot reads in home are kept before home is overwritten.
        KeptForSnapshots,
        /// Images that another process reads in home are kept before home is overwritten.
        KeptForOthers,
    }
    AnnounceThenLook {
        /// A snapshot is announced before it is used.
        SnapshotsAnnounced,
    }
    JournalInOrder {
        /// A real journal is gone for good before the transaction beside it is acknowledged.
        JournalRemovalFlushed,
        /// A real journal becomes one when all of it is durable.
        JournalHeadLast,
    }
    RollbackIsReal {
        /// A hot journal is rolled back before anything is read.
        HotJournalFirst,
    }
    WalBeforeHome {
        /// A WAL is durable before home is overwritten with it.
        WalBeforeHome,
        /// Home has the content of the WAL, and has left WAL mode, before the WAL goes.
        HomeBeforeWalGoes,
    }
    PreparedThenDecided {
        /// A record of a transaction over several files is flushed before the decision.
        PreparedFlushed,
        /// Who finds such a record undecided looks for the decision.
        UndecidedAsks,
        /// The decision is flushed before anything is shown.
        DecisionFlushed,
        /// A decision stays while somebody may ask for it.
        DecisionKept,
    }
    MarkWithFirstRecord {
        /// I3: the first flush of a record covers a mark that was not flushed by itself.
        MarkWithFirstRecord,
        /// A flush of home takes along what is in a log that has its seal, and in no other.
        LogSealed,
    }
    SlotWithFirstRecord {
        /// The first flush of a session that was begun without one covers its slot.
        SlotWithFirstRecord,
    }
    CloseProven {
        /// What a close overwrites says that the session has ended.
        CloseProven,
        /// What proves that a session has ended is not overwritten before the next mark is durable.
        ProofKept,
    }
    FlushedStays {
        /// Recovery flushes nothing where all was flushed, not where it was written alone.
        FlushedStays,
    }
    HeldInPlace {
        /// Home's image is held for snapshots while a page is overwritten in place.
        HeldInPlace,
    }
    SlotsAgree {
        /// Before a page is written in place, both slots begin at the same record.
        SlotsAgree,
    }
    TrailerSession {
        /// A trailer counts only under the session it names.
        TrailerSession,
        /// A restored page gets a checksum of its own.
        RestoredSealed,
    }
    HomeBeforeNext {
        /// While the log of an in-page scheme has a record, nothing goes in place.
        HomeBeforeNext,
    }
    SizeHome {
        /// A checkpoint of an in-page scheme brings the size on page 1 up to date.
        SizeHome,
    }
    SizeLast {
        /// Recovery brings page 1 home when the pages that it counts are flushed.
        SizeLast,
    }
    ExchangeFlushed {
        /// A file gets the name of the database when it is flushed.
        FlushedBeforeExchange,
        /// The exchange of two names is flushed before the file that lost the name is written.
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

/// Breaks a case on this thread, or keeps all of them again.
#[cfg(feature = "canary")]
pub fn break_on_this_thread(case: Option<Case>) {
    BROKEN.set(case);
}
