------------------------------ MODULE RegionMerge ------------------------------
(* Decision of a prepared merge: the source takes no writes until the target's log commits the     *)
(* merge, or the source is rolled back. `Servers` hold the source, and the target's members at the *)
(* epoch that the preparation names. `log` is what the target's Raft group commits after that      *)
(* epoch; KvsRaft.tla has the protocol that makes it one sequence. Its first entry decides.        *)
(*                                                                                                 *)
(* Kinds of entry: "commit" takes over the source; "refuse" changes nothing but the epoch;         *)
(* "members" removes or adds replicas; "range" splits or merges, and after a commit it gives the   *)
(* source's keys to another region. The epoch after entry i: "refuse" and "members" raise its      *)
(* `conf_version`, "commit" and "range" its `version`. A crash loses `told` and `lost`, which      *)
(* leaves fewer proofs: it needs no action.                                                        *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Servers,
    MaxLog, MaxSnapshots, MaxDestroyed,
    Bugs

Bug(name) == name \in Bugs
Symmetry == Permutations(Servers)

VARIABLES
    log,
    applied,    \* server -> last entry that the target's replica here has applied, or had at its end
    live,       \* servers with a replica of the target
    skipped,    \* servers on which the target passed the named epoch by a snapshot
    told,       \* a server was told that it is no member, as of an epoch that proves a refusal
    elsewhere,  \* last entry that the target applied on other servers; 0 for none
    recorded,   \* the record of committed merges there is complete since the named epoch
    source,     \* server -> "merging" or "merged"
    rolled,     \* the source's log has its rollback
    lost,       \* servers that answered that their replica of the target is lost.
    promised,   \* a leader of the target answered that it refuses
    snapshots, destroyed

vars == <<log, applied, live, skipped, told, elsewhere, recorded, source, rolled, lost, promised,
          snapshots, destroyed>>

Init ==
    /\ log = <<>>
    /\ applied = [s \in Servers |-> 0]
    /\ live = Servers
    /\ skipped = {}
    /\ told = FALSE
    /\ elsewhere = 0
    /\ recorded = FALSE
    /\ source = [s \in Servers |-> "merging"]
    /\ rolled = FALSE
    /\ lost = {}
    /\ promised = FALSE
    /\ snapshots = 0 /\ destroyed = 0

Majority(S) == 2 * Cardinality(S) > Cardinality(Servers)
Has(kind, from, upto) == \E i \in (from + 1)..upto : log[i] = kind
IsCommitted == Has("commit", 0, Len(log))

(* After entry i the target owns the source's keys. *)
Owns(i) == \E c \in 1..i : log[c] = "commit" /\ ~Has("range", c, i)

(* The epoch after entry i has the named version and a later membership: no commit is before it. *)
Refuses(i) ==
    /\ i > 0
    /\ ~Has("commit", 0, i) /\ ~Has("range", 0, i)

-----------------------------------------------------------------------------
(* The target. *)

(* A proposal is derived from the region after all entries. A commit needs the named epoch. *)
Propose(kind) ==
    /\ Len(log) < MaxLog
    /\ \/ \E s \in live : applied[s] = Len(log)
       \/ elsewhere > 0 /\ elsewhere = Len(log)
    /\ log = <<>> => Majority(live)
    /\ kind = "commit" => log = <<>> \/ Bug("commit_at_any_epoch")
    /\ kind = "refuse" => log = <<>>
    /\ log' = Append(log, kind)
    /\ UNCHANGED <<applied, live, skipped, told, elsewhere, recorded, source, rolled, lost,
                   promised, snapshots, destroyed>>

Apply(s) ==
    /\ s \in live
    /\ applied[s] < Len(log)
    /\ applied' = [applied EXCEPT ![s] = @ + 1]
    /\ source' = IF log[applied[s] + 1] = "commit" /\ source[s] = "merging"
                 THEN [source EXCEPT ![s] = "merged"] ELSE source
    /\ UNCHANGED <<log, live, skipped, told, elsewhere, recorded, rolled, lost, promised,
                   snapshots, destroyed>>

IsApplied(i) == elsewhere >= i \/ \E s \in Servers : applied[s] >= i

(* A snapshot comes to a replica that is behind, or to one that a later membership has again. *)
Snapshot(s, i) ==
    /\ snapshots < MaxSnapshots
    /\ applied[s] < i /\ IsApplied(i)
    /\ s \in live \/ Has("members", applied[s], i)
    /\ applied' = [applied EXCEPT ![s] = i]
    /\ live' = live \cup {s}
    /\ skipped' = IF applied[s] = 0 \/ Bug("last_snapshot_alone") THEN skipped \cup {s} ELSE skipped
    /\ source' = IF Owns(i) /\ source[s] = "merging"
                 THEN [source EXCEPT ![s] = "merged"] ELSE source
    /\ snapshots' = snapshots + 1
    /\ UNCHANGED <<log, told, elsewhere, recorded, rolled, lost, promised, destroyed>>

(* The version of the target after entry i is a later one than the named one. *)
Changed(i) == Has("commit", 0, i) \/ Has("range", 0, i)

(* Replicas of a later membership on other servers come by a snapshot, and go on by the log. The    *)
(* record of committed merges comes with the snapshot, unless the sender lacks it: it is of an      *)
(* earlier version, or got a snapshot from one. A record that begins before the version changed is  *)
(* complete.                                                                                       *)
Elsewhere(i) ==
    /\ elsewhere < i
    /\ \/ /\ IsApplied(i) /\ Has("members", 0, i)
          /\ recorded' \in {TRUE, ~Changed(i)}
       \/ elsewhere > 0 /\ i = elsewhere + 1 /\ UNCHANGED recorded
    /\ elsewhere' = i
    /\ UNCHANGED <<log, applied, live, skipped, told, source, rolled, lost, promised, snapshots,
                   destroyed>>

(* A member of a later membership says that this replica is none. The tombstone keeps the epoch *)
(* that is applied here.                                                                         *)
Gone(s, i) ==
    /\ s \in live /\ IsApplied(i) /\ Has("members", applied[s], i)
    /\ live' = live \ {s}
    /\ told' = (told \/ Refuses(i) \/ Bug("gone_version"))
    /\ applied' = IF Bug("gone_epoch_kept") THEN [applied EXCEPT ![s] = i] ELSE applied
    /\ UNCHANGED <<log, skipped, elsewhere, recorded, source, rolled, lost, promised, snapshots,
                   destroyed>>

(* An administrator destroys a replica. *)
Destroy(s) ==
    /\ s \in live /\ destroyed < MaxDestroyed
    /\ live' = live \ {s}
    /\ destroyed' = destroyed + 1
    /\ UNCHANGED <<log, applied, skipped, told, elsewhere, recorded, source, rolled, lost,
                   promised, snapshots>>

-----------------------------------------------------------------------------
(* The source. *)

(* The proof of one server: its replica has such an epoch, or it passed the named epoch by its   *)
(* log, and left the source as it is. Both are durable.                                          *)
Proves(s) ==
    \/ Refuses(applied[s])
    \/ applied[s] > 0 /\ source[s] # "merged" /\ (s \notin skipped \/ Bug("snapshot_proves"))
    \/ applied[s] = 0 /\ s \notin live /\ source[s] = "merging" /\ Bug("tombstone_proves")

(* The proof of the other servers, which have no replica of the source: the record names each source *)
(* that the target took over.                                                                        *)
ProvesElsewhere ==
    /\ Changed(elsewhere)
    /\ \/ recorded /\ (~Has("commit", 0, elsewhere) \/ Bug("commit_unrecorded"))
       \/ ~recorded /\ Bug("incomplete_record_proves")

IsLost(s) == s \notin live /\ applied[s] = 0 /\ source[s] = "merging"

AnswerLost(s) ==
    /\ IsLost(s) /\ s \notin lost
    /\ lost' = lost \cup {s}
    /\ UNCHANGED <<log, applied, live, skipped, told, elsewhere, recorded, source, rolled,
                   promised, snapshots, destroyed>>

PromiseRefusal ==
    /\ Bug("refusal_unwritten") /\ log = <<>> /\ live # {} /\ ~promised
    /\ promised' = TRUE
    /\ UNCHANGED <<log, applied, live, skipped, told, elsewhere, recorded, source, rolled, lost,
                   snapshots, destroyed>>

RollBack ==
    /\ ~rolled
    /\ Majority({s \in Servers : source[s] = "merging"})
    /\ \/ told \/ ProvesElsewhere \/ \E s \in Servers : Proves(s)
       \/ lost = Servers
       \/ Bug("lost_on_most") /\ Majority(lost)
       \/ promised
    /\ rolled' = TRUE
    /\ UNCHANGED <<log, applied, live, skipped, told, elsewhere, recorded, source, lost, promised,
                   snapshots, destroyed>>

-----------------------------------------------------------------------------
Next ==
    \/ \E kind \in {"commit", "refuse", "members", "range"} : Propose(kind)
    \/ \E s \in Servers : Apply(s) \/ Destroy(s) \/ AnswerLost(s)
    \/ \E s \in Servers, i \in 1..Len(log) : Snapshot(s, i) \/ Gone(s, i)
    \/ \E i \in 1..Len(log) : Elsewhere(i)
    \/ PromiseRefusal
    \/ RollBack

Spec == Init /\ [][Next]_vars

(* No key belongs to both regions: once the source is rolled back, no replica of the target has *)
(* taken it over.                                                                                *)
OneOwner ==
    rolled =>
        /\ \A s \in Servers : source[s] # "merged"
        /\ \A s \in live : ~Has("commit", 0, applied[s])
        /\ ~Has("commit", 0, elsewhere)

(* A target that refused leaves a proof on a server of the source, once a second entry follows. *)
ProofRemains ==
    Len(log) > 1 /\ ~IsCommitted => \E s \in Servers : Proves(s)

(* With the record the other servers have a proof of a refusal, too, once they passed the version or  *)
(* the membership: the source is rolled back also if each server above is lost.                      *)
ProofElsewhere ==
    elsewhere > 0 /\ recorded /\ ~IsCommitted => ProvesElsewhere \/ Refuses(elsewhere)
===============================================================================
