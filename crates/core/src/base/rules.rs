//! Canaries: cases of the rules that a test can break, one at a time, for a campaign to notice.

macro_rules! cases {
    ($($rule:ident { $($(#[$doc:meta])* $case:ident,)+ })+) => {
        /// A case of a rule, as `docs/commit.md` or `docs/research.md` names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Case {
            $($($(#[$doc])* $case,)+)+
        }

        impl Case {
            /// Every case.
            pub const ALL: [Case; [$($(Case::$case),+),+].len()] = [$($(Case::$case),+),+];

            /// Its rule, or omission.
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
        /// I1: under FULL, a commit waits for its flush.
        AcknowledgedAfterFlush,
        /// An empty commit flushes the state below it.
        EmptyCommitFlushes,
    }
    SeenWhenDurable {
        /// All processes see a transaction at once.
        SeenByAllAtOnce,
    }
    Poisons {
        /// A failed write or flush poisons.
        Poisons,
        /// Poison reaches every process.
        PoisonTold,
    }
    WholeTransaction {
        /// A record counts with all streamed images.
        StreamedWhole,
        /// What streamed home is flushed before the record.
        StreamedHomeFirst,
        /// Pages behind FCNTL_SYNC are committed too.
        LateWritesCommitted,
    }
    AbsoluteBytes {
        /// Pages beyond the previous end start as zeros.
        ZerosBeyondEnd,
    }
    RecordChain {
        /// Salt, TID and checksum chain records.
        RecordChain,
    }
    OneNumberOneState {
        /// Nothing from before a recovery fits.
        NewSession,
    }
    DamageIsTold {
        /// Later records prove damage.
        LaterRecordProves,
    }
    WrittenAgain {
        /// Live records are rewritten before home.
        RecordsRewritten,
        /// Recovery flushes slot and names.
        LeftoversFlushed,
    }
    LogBeforeHome {
        /// Home gets durable pages alone.
        HomeNotAheadOfLog,
    }
    HomeBeforeSlot {
        /// Home, then the slot.
        HomeBeforeSlot,
        /// The slot moves behind the sweep.
        SlotBehindSweep,
    }
    SlotBeforeReuse {
        /// The slot is flushed first.
        SlotFlushed,
        /// The longer ring, then its slot.
        RingGrownBeforeSlot,
        /// The small ring's slot, then the truncation.
        LogGivenBack,
        /// Others know a slot before its old records go.
        SlotTold,
    }
    LogBeforeMark {
        /// I3: the log's name, then the mark.
        LogBeforeMark,
        /// I3: the mark, then the first record, or both at once.
        MarkBeforeRecord,
    }
    MarkWhileNeeded {
        /// Page 1 always carries the mark.
        MarkStays,
        /// Home is complete before unmarking.
        MarkOffLast,
    }
    HomeFitsLog {
        /// Two moments do not fit.
        HomeFitsLog,
    }
    NothingLeftBehind {
        /// The last close under `secure_delete` leaves nothing readable.
        LogWiped,
    }
    OldImageKept {
        /// I4: home's images are kept for snapshots.
        KeptForSnapshots,
        /// Home's images are kept for other processes.
        KeptForOthers,
        /// No snapshot reads where images stream home.
        StreamedBehindEnd,
    }
    AnnounceThenLook {
        /// Snapshots are announced before use.
        SnapshotsAnnounced,
    }
    JournalInOrder {
        /// A journal's removal is flushed before the acknowledgement.
        JournalRemovalFlushed,
        /// A journal's head is written last.
        JournalHeadLast,
    }
    RollbackIsReal {
        /// Hot journals are rolled back first.
        HotJournalFirst,
    }
    WalBeforeHome {
        /// The WAL is durable before home changes.
        WalBeforeHome,
        /// Home is out of WAL mode before the WAL goes.
        HomeBeforeWalGoes,
    }
    PreparedThenDecided {
        /// Prepared records, then the decision.
        PreparedFlushed,
        /// Undecided records ask for the decision.
        UndecidedAsks,
        /// The decision is flushed before it shows.
        DecisionFlushed,
        /// Needed decisions stay.
        DecisionKept,
    }
    MergeIsSerial {
        /// Nothing that a merged transaction read or wrote has changed.
        UnchangedSince,
        /// Pages that it adds follow those of the others.
        AddedBehindEnd,
    }
    MarkWithFirstRecord {
        /// I3: the first record's flush covers the mark.
        MarkWithFirstRecord,
        /// A flush of home covers sealed logs alone.
        LogSealed,
    }
    SlotWithFirstRecord {
        /// The first flush covers the slot.
        SlotWithFirstRecord,
    }
    CloseProven {
        /// Records prove the close.
        CloseProven,
        /// The proof outlives the next mark's flush.
        ProofKept,
    }
    FlushedStays {
        /// Recovery spares flushes only where all was flushed.
        FlushedStays,
    }
    HeldInPlace {
        /// Snapshots have home's image during a write in place.
        HeldInPlace,
    }
    SlotsAgree {
        /// Before a write in place, the slots agree.
        SlotsAgree,
    }
    TrailerSession {
        /// Trailers count under their session.
        TrailerSession,
        /// Restored pages get checksums.
        RestoredSealed,
    }
    HomeBeforeNext {
        /// Nothing goes in place beside a record.
        HomeBeforeNext,
    }
    SizeHome {
        /// A checkpoint updates page 1's size.
        SizeHome,
    }
    SizeLast {
        /// Page 1 follows the pages it counts.
        SizeLast,
    }
    ExchangeFlushed {
        /// A file is flushed before the exchange.
        FlushedBeforeExchange,
        /// The exchange is flushed before other writes.
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

/// The case that is broken on this thread.
#[cfg(feature = "canary")]
pub fn broken_on_this_thread() -> Option<Case> {
    BROKEN.get()
}

/// Breaks a case on this thread, or none.
#[cfg(feature = "canary")]
pub fn break_on_this_thread(case: Option<Case>) {
    BROKEN.set(case);
}
