------------------------------ MODULE KvsRaft ------------------------------
(* Raft with the log as value store. A value is written once, to a segment of the log; the index   *)
(* holds locators <<file, offset>>. Flush, relocation, truncation and snapshots move the boundary  *)
(* between entries that must be replayed and state in the durable index. A crash may come between  *)
(* any two steps. README.md maps each action to code.                                              *)
(*                                                                                                 *)
(* The network is not a set of messages but their content: `lead` holds the longest log of the     *)
(* leader of each term, `acked` what each server ever promised in it. Lost, repeated, late and     *)
(* reordered messages thus need no state.                                                          *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Servers,        \* replicas
    Voters,         \* voting servers; the others are learners
    Keys, Values,
    None, Deleted, Noop,
    MaxTerm, MaxLog, MaxCrashes,
    SegmentRecords, \* records of a segment, at most
    MaxFiles,       \* limit of files created on a server: from there on no merge starts
    MaxTiers,       \* tiers of a server, at most: then flushes wait
    MaxSnapshots,   \* snapshots sent, at most
    Flushes,        \* whether memtables are flushed and logs truncated
    Collects,       \* whether values are moved and files removed
    Views,          \* whether readers pin files
    Led,            \* whether the first leader leads from the start
    Bugs            \* guards that are disabled

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x
Bug(name) == name \in Bugs
Quorums == {Q \in SUBSET Voters : 2 * Cardinality(Q) > Cardinality(Voters)}
Ops == {Noop} \cup [key : Keys, value : Values \cup {Deleted}]

Symmetry == Permutations(Voters) \cup Permutations(Values)
ValueSymmetry == Permutations(Values)

VARIABLES
    \* Raft, in memory. A log starts after entry `i` of term `t`; `e` holds the entries after it.
    term, vote, role, log, commit, matched,
    \* Records to be written, in their order on the disk.
    batch,
    \* The disk: hard state; start of the log; files; manifest.
    hard, start, files, manifest,
    \* The state machine, in memory.
    applied, mem, frozen, job, incoming, view,
    \* Content of the network, and history.
    granted, lead, acked, snaps, chosen, crashes, sent

raft == <<term, vote, role, log, commit, matched>>
disk == <<hard, start, files, manifest>>
machine == <<applied, mem, frozen, job, incoming, view>>
network == <<granted, lead, acked, snaps, sent>>
history == <<chosen, crashes>>
vars == <<raft, batch, disk, machine, network, history>>

-----------------------------------------------------------------------------
(* Logs *)

LastIndex(l) == l.i + Len(l.e)
EntryAt(l, i) == l.e[i - l.i]
TermAt(l, i) == IF i = l.i THEN l.t ELSE EntryAt(l, i).t
LastTerm(l) == TermAt(l, LastIndex(l))
Has(l, i) == i > l.i /\ i <= LastIndex(l)
CutFrom(l, i) == [l EXCEPT !.e = SubSeq(l.e, 1, i - 1 - l.i)]
Begin(i, t) == [i |-> i, t |-> t, e |-> <<>>]

(* Files. A segment holds entries and marks, a sorted file holds values. *)

FileIds(s) == DOMAIN files[s]
Segments(s) == {f \in FileIds(s) : ~files[s][f].sorted}
HeadSegment(s) == MaxOf(Segments(s))
NextFile(s) == Max(manifest[s].next, MaxOf(FileIds(s)) + 1)
WithFile(all, f, content) == [x \in DOMAIN all \cup {f} |-> IF x = f THEN content ELSE all[x]]
WithoutFile(all, f) == [x \in DOMAIN all \ {f} |-> all[x]]

EntryRecord(i, e) == [kind |-> "entry", i |-> i, t |-> e.t, op |-> e.op]
StartRecord(i, t) == [kind |-> "start", i |-> i, t |-> t, op |-> Noop]

(* The position of a batch is known before it is written. *)
IsFull(s) == Len(files[s][HeadSegment(s)].records) >= SegmentRecords
Target(s) == IF IsFull(s) THEN NextFile(s) ELSE HeadSegment(s)
Offset(s) == IF IsFull(s) THEN 0 ELSE Len(files[s][HeadSegment(s)].records)

(* Position of the log before a segment, stored in its header. *)
Carried(l) == [i |-> LastIndex(l), t |-> LastTerm(l)]

(* Log according to the disk: the segments from `manifest.from` on, in order. In the result `i` is *)
(* above `start.i` if entries are missing.                                                         *)
RECURSIVE Replay(_, _, _)
Replay(l, records, n) ==
    IF n > Len(records) THEN l ELSE
    LET r == records[n] IN
    Replay(
        CASE r.kind = "start" -> Begin(r.i, r.t)
          [] r.kind = "entry" /\ r.i <= l.i ->
                [i |-> r.i - 1, t |-> 0, e |-> <<[t |-> r.t, op |-> r.op]>>]
          [] r.kind = "entry" /\ Has(l, r.i) ->
                [l EXCEPT !.e = Append(SubSeq(l.e, 1, r.i - 1 - l.i), [t |-> r.t, op |-> r.op])]
          [] OTHER -> [l EXCEPT !.e = Append(l.e, [t |-> r.t, op |-> r.op])],
        records, n + 1)

RECURSIVE ReplayFiles(_, _, _)
ReplayFiles(s, l, ids) ==
    IF ids = {} THEN l ELSE
    LET f == CHOOSE x \in ids : \A y \in ids : x <= y IN
    ReplayFiles(s, Replay(l, files[s][f].records, 1), ids \ {f})

DiskLog(s) ==
    LET ids == {f \in Segments(s) : f >= manifest[s].from}
        first == files[s][CHOOSE x \in ids : \A y \in ids : x <= y]
        l == ReplayFiles(s, Begin(first.carried.i, first.carried.t), ids)
        to == start[s]
    IN  IF l.i <= to.i /\ to.i <= LastIndex(l)
        THEN [i |-> to.i, t |-> to.t, e |-> SubSeq(l.e, to.i - l.i + 1, Len(l.e))]
        ELSE l

(* Installed snapshot with a mark that is missing in the log: opening repeats the mark. *)
Repeats(s, l) ==
    LET at == manifest[s].at IN
    at.i > start[s].i /\ ~(Has(l, at.i) /\ EntryAt(l, at.i).t = at.t)

(* Positions of the current entries: the last record of an index counts. *)
PlacesOf(s, i) ==
    {<<f, n>> \in UNION {{f} \X (1..Len(files[s][f].records)) : f \in Segments(s)} :
        LET r == files[s][f].records[n] IN r.kind = "entry" /\ r.i = i}
Later(a, b) == a[1] > b[1] \/ (a[1] = b[1] /\ a[2] > b[2])
DiskPlace(s, i) == CHOOSE p \in PlacesOf(s, i) : \A q \in PlacesOf(s, i) : p = q \/ Later(p, q)
InBatch(s, i) == {n \in 1..Len(batch[s]) : batch[s][n].kind = "entry" /\ batch[s][n].i = i}
Place(s, i) ==
    IF InBatch(s, i) # {} THEN <<Target(s), Offset(s) + MaxOf(InBatch(s, i))>> ELSE DiskPlace(s, i)
IsDurable(s, i) == \A n \in 1..Len(batch[s]) : batch[s][n].i > i

(* First segment with an entry that is not truncated; the head segment if there is none. *)
WantedFrom(s) ==
    LET l == DiskLog(s)
        places == {DiskPlace(s, i)[1] : i \in (l.i + 1)..LastIndex(l)}
    IN  IF places = {} THEN HeadSegment(s) ELSE CHOOSE x \in places : \A y \in places : x <= y

(* Index: key -> slot; newest tier first. *)
NoSlots == [k \in Keys |-> None]
IsPlace(slot) == slot # None /\ slot # Deleted
Look(tiers, k) ==
    LET known == {n \in 1..Len(tiers) : tiers[n][k] # None} IN
    IF known = {} THEN None ELSE tiers[CHOOSE n \in known : \A m \in known : n <= m][k]
Tables(s) == <<mem[s]>> \o (IF frozen[s] = None THEN <<>> ELSE <<frozen[s].slots>>) \o manifest[s].tiers
Lookup(s, k) == Look(Tables(s), k)

Resolves(s, p) ==
    /\ p[1] \in FileIds(s)
    /\ p[2] <= Len(files[s][p[1]].records)
    /\ files[s][p[1]].records[p[2]].kind # "start"
    /\ files[s][p[1]].records[p[2]].op # Noop
OpAt(s, p) == files[s][p[1]].records[p[2]].op
Read(s, slot, k) ==
    IF ~IsPlace(slot) THEN None
    ELSE IF Resolves(s, slot) /\ OpAt(s, slot).key = k THEN OpAt(s, slot).value ELSE "dangling"

(* Value of a key after the committed entries up to i. *)
ValueAt(i, k) ==
    LET writes == {n \in 1..Min(i, Len(chosen)) : chosen[n].op # Noop /\ chosen[n].op.key = k} IN
    IF writes = {} THEN None
    ELSE LET v == chosen[MaxOf(writes)].op.value IN IF v = Deleted THEN None ELSE v

-----------------------------------------------------------------------------

EmptySegment(i, t) == [sorted |-> FALSE, synced |-> TRUE, records |-> <<>>,
                       carried |-> [i |-> i, t |-> t]]

(* `first` leads term 1 from the start, and all servers have applied its first entry. *)
InitialTerm(first) ==
    LET one == IF first = None THEN 0 ELSE 1
        noop == [t |-> 1, op |-> Noop]
        entries == IF first = None THEN <<>> ELSE <<noop>>
        records == IF first = None THEN <<>> ELSE <<EntryRecord(1, noop)>>
    IN
    /\ term = [s \in Servers |-> one]
    /\ vote = [s \in Servers |-> IF s \in Voters THEN first ELSE None]
    /\ role = [s \in Servers |-> IF s = first THEN "leader" ELSE "follower"]
    /\ log = [s \in Servers |-> [i |-> 0, t |-> 0, e |-> entries]]
    /\ commit = [s \in Servers |-> one]
    /\ matched = [s \in Servers |-> one]
    /\ hard = [s \in Servers |-> [term |-> one, vote |-> vote[s], commit |-> one]]
    /\ files = [s \in Servers |-> [f \in {1} |-> [EmptySegment(0, 0) EXCEPT !.records = records]]]
    /\ applied = [s \in Servers |-> one]
    /\ lead = [t \in 1..MaxTerm |->
            IF t = one THEN [by |-> {first}, e |-> entries, commit |-> one]
            ELSE [by |-> {}, e |-> <<>>, commit |-> 0]]
    /\ acked = [s \in Servers |-> [t \in 1..MaxTerm |-> IF t = one THEN one ELSE 0]]
    /\ chosen = entries

Init ==
    /\ IF Led THEN \E first \in Voters : InitialTerm(first) ELSE InitialTerm(None)
    /\ batch = [s \in Servers |-> <<>>]
    /\ start = [s \in Servers |-> [i |-> 0, t |-> 0]]
    /\ manifest = [s \in Servers |->
            [tiers |-> <<>>, at |-> [i |-> 0, t |-> 0], next |-> 2, from |-> 1]]
    /\ mem = [s \in Servers |-> NoSlots]
    /\ frozen = [s \in Servers |-> None]
    /\ job = [s \in Servers |-> None]
    /\ incoming = [s \in Servers |-> None]
    /\ view = [s \in Servers |-> None]
    /\ granted = {}
    /\ snaps = {}
    /\ crashes = 0
    /\ sent = 0

(* While an installation is between its edit and its mark, the replica does nothing else. *)
IsBusy(s) == incoming[s] # None /\ incoming[s].stage = "between"

-----------------------------------------------------------------------------
(* Elections. A promise is sent after the sync that makes it durable. *)

WithoutCandidate(c) == {g \in granted : g.for # c}
WithVote(all, s, t, c) ==
    IF c # None /\ role[c] = "candidate" /\ term[c] = t THEN all \cup {[by |-> s, for |-> c]} ELSE all

Campaign(s) ==
    /\ ~IsBusy(s)
    /\ s \in Voters
    /\ role[s] # "leader"
    /\ term[s] < MaxTerm
    \* All entries of a candidate are durable.
    /\ batch[s] = <<>>
    /\ term' = [term EXCEPT ![s] = @ + 1]
    /\ vote' = [vote EXCEPT ![s] = s]
    /\ role' = [role EXCEPT ![s] = "candidate"]
    /\ matched' = [matched EXCEPT ![s] = 0]
    /\ granted' = WithoutCandidate(s)
            \cup (IF Bug("lead_before_sync") THEN {[by |-> s, for |-> s]} ELSE {})
    /\ UNCHANGED <<log, commit, batch, disk, machine, lead, acked, snaps, sent, history>>

IsUpToDate(c, s) ==
    \/ LastTerm(log[c]) > LastTerm(log[s])
    \/ LastTerm(log[c]) = LastTerm(log[s]) /\ LastIndex(log[c]) >= LastIndex(log[s])

GrantVote(s, c) ==
    /\ ~IsBusy(s)
    /\ s # c
    /\ role[c] = "candidate"
    /\ \/ term[s] < term[c]
       \/ term[s] = term[c] /\ vote[s] = None /\ role[s] = "follower"
    /\ IsUpToDate(c, s)
    /\ term' = [term EXCEPT ![s] = term[c]]
    /\ vote' = [vote EXCEPT ![s] = c]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ matched' = [matched EXCEPT ![s] = 0]
    /\ granted' = WithoutCandidate(s)
            \cup (IF Bug("vote_before_sync") THEN {[by |-> s, for |-> c]} ELSE {})
    /\ UNCHANGED <<log, commit, batch, disk, machine, lead, acked, snaps, sent, history>>

(* The first entry of a term is empty. *)
Lead(s) ==
    /\ role[s] = "candidate"
    /\ LastIndex(log[s]) < MaxLog
    /\ {g.by : g \in {x \in granted : x.for = s}} \cap Voters \in Quorums
    /\ LET e == [t |-> term[s], op |-> Noop]
           i == LastIndex(log[s]) + 1
       IN
        /\ log' = [log EXCEPT ![s].e = Append(@, e)]
        /\ batch' = [batch EXCEPT ![s] = Append(@, EntryRecord(i, e))]
        /\ matched' = [matched EXCEPT ![s] = i]
        \* Entries before the log's start are applied on every server that may need them: they are
        \* chosen.
        /\ lead' = [lead EXCEPT ![term[s]] =
                [by |-> @.by \cup {s},
                 e |-> Append(SubSeq(chosen, 1, log[s].i) \o log[s].e, e),
                 commit |-> commit[s]]]
    /\ role' = [role EXCEPT ![s] = "leader"]
    /\ granted' = WithoutCandidate(s)
    /\ UNCHANGED <<term, vote, commit, disk, machine, acked, snaps, sent, history>>

-----------------------------------------------------------------------------
(* Replication *)

Propose(s, op) ==
    /\ role[s] = "leader"
    /\ LastIndex(log[s]) < MaxLog
    /\ LET e == [t |-> term[s], op |-> op]
           i == LastIndex(log[s]) + 1
       IN
        /\ log' = [log EXCEPT ![s].e = Append(@, e)]
        /\ batch' = [batch EXCEPT ![s] = Append(@, EntryRecord(i, e))]
        /\ matched' = [matched EXCEPT ![s] = i]
        /\ lead' = [lead EXCEPT ![term[s]].e = Append(@, e)]
    /\ UNCHANGED <<term, vote, role, commit, disk, machine, granted, acked, snaps, sent, history>>

(* Last index up to which two logs agree. Entries before a log's start are committed, and thus     *)
(* equal.                                                                                          *)
RECURSIVE Agreed(_, _, _)
Agreed(l, e, i) ==
    IF Has(l, i + 1) /\ i + 1 <= Len(e) /\ EntryAt(l, i + 1).t = e[i + 1].t
    THEN Agreed(l, e, i + 1) ELSE i

RECURSIVE Records(_, _, _)
Records(e, from, to) ==
    IF from > to THEN <<>> ELSE <<EntryRecord(from, e[from])>> \o Records(e, from + 1, to)

(* Receives entries of the leader of term t up to `upto`, or an append that shows they match. *)
Receive(s, t, upto, learns) ==
    /\ ~IsBusy(s)
    /\ lead[t].by # {}
    /\ t >= term[s]
    /\ ~(s \in lead[t].by /\ role[s] = "leader" /\ term[s] = t)
    /\ LET all == lead[t].e
           same == Agreed(log[s], all, log[s].i)
           known == IF t > term[s] THEN 0 ELSE matched[s]
       IN
        /\ upto <= Len(all)
        /\ upto >= same
        /\ log[s].i <= Len(all)
        /\ log' = [log EXCEPT ![s] =
                IF upto > same
                THEN [@ EXCEPT !.e = SubSeq(@, 1, same - log[s].i) \o SubSeq(all, same + 1, upto)]
                ELSE @]
        /\ batch' = [batch EXCEPT ![s] = @ \o Records(all, same + 1, upto)]
        /\ matched' = [matched EXCEPT ![s] = Max(known, upto)]
        /\ commit' = [commit EXCEPT ![s] = IF learns THEN Max(@, Min(lead[t].commit, upto)) ELSE @]
        /\ learns => lead[t].commit > commit[s]
        /\ acked' = IF (batch'[s] = <<>> /\ hard[s].term = t) \/ Bug("ack_before_sync")
                    THEN [acked EXCEPT ![s][t] = Max(@, matched'[s])] ELSE acked
    /\ term' = [term EXCEPT ![s] = t]
    /\ vote' = [vote EXCEPT ![s] = IF t > term[s] THEN None ELSE @]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ granted' = IF t > term[s] \/ role[s] # "follower" THEN WithoutCandidate(s) ELSE granted
    /\ UNCHANGED <<disk, machine, lead, snaps, sent, history>>

(* One write and one sync of the batch. After a full segment comes a new one, with the log's       *)
(* position in its header. Acknowledgements and votes are sent now.                                *)
Sync(s) ==
    /\ ~IsBusy(s)
    /\ batch[s] # <<>> \/ term[s] # hard[s].term \/ vote[s] # hard[s].vote
    /\ hard' = [hard EXCEPT ![s] = [term |-> term[s], vote |-> vote[s], commit |-> commit[s]]]
    /\ files' = [files EXCEPT ![s] =
            IF batch[s] = <<>> THEN @
            ELSE LET to == Target(s)
                     old == IF IsFull(s)
                            THEN [EmptySegment(0, 0) EXCEPT !.carried = Carried(DiskLog(s))]
                            ELSE @[to]
                 IN  WithFile(@, to, [old EXCEPT !.records = @ \o batch[s]])]
    /\ batch' = [batch EXCEPT ![s] = <<>>]
    /\ granted' = WithVote(granted, s, term[s], vote[s])
    /\ acked' = IF term[s] = 0 THEN acked ELSE [acked EXCEPT ![s][term[s]] = Max(@, matched[s])]
    /\ UNCHANGED <<raft, start, manifest, machine, lead, snaps, sent, history>>

(* A leader counts acknowledgements of its own term. The client may be answered from here on. *)
Commit(s) ==
    /\ role[s] = "leader"
    /\ LET promised == {i \in (commit[s] + 1)..LastIndex(log[s]) :
                {v \in Voters : acked[v][term[s]] >= i} \in Quorums}
           i == MaxOf(promised)
       IN
        /\ promised # {}
        /\ EntryAt(log[s], i).t = term[s] \/ Bug("commit_earlier_term")
        /\ commit' = [commit EXCEPT ![s] = i]
        /\ lead' = [lead EXCEPT ![term[s]].commit = i]
        /\ chosen' = IF i <= Len(chosen) THEN chosen
                     ELSE chosen \o SubSeq(lead[term[s]].e, Len(chosen) + 1, i)
    /\ UNCHANGED <<term, vote, role, log, matched, batch, disk, machine, granted, acked, snaps, sent,
                   crashes>>

-----------------------------------------------------------------------------
(* State machine: key -> locator. No value moves. *)

With(slots, op, p) ==
    IF op = Noop THEN slots
    ELSE [slots EXCEPT ![op.key] = IF op.value = Deleted THEN Deleted ELSE p]

RECURSIVE Applied(_, _, _, _)
Applied(s, slots, i, upto) ==
    IF i > upto THEN slots
    ELSE Applied(s, With(slots, EntryAt(log[s], i).op, Place(s, i)), i + 1, upto)

(* Applies entries that are committed, and durable on this server. *)
Apply(s) ==
    /\ applied[s] < commit[s]
    /\ ~IsBusy(s)
    /\ LET ready == {i \in (applied[s] + 1)..commit[s] : IsDurable(s, i) \/ Bug("apply_before_sync")}
       IN
        /\ ready # {}
        /\ mem' = [mem EXCEPT ![s] = Applied(s, @, applied[s] + 1, MaxOf(ready))]
        /\ applied' = [applied EXCEPT ![s] = MaxOf(ready)]
    /\ UNCHANGED <<raft, batch, disk, frozen, job, incoming, view, network, history>>

Freeze(s) ==
    /\ Flushes
    /\ ~IsBusy(s)
    /\ frozen[s] = None
    /\ applied[s] > manifest[s].at.i
    /\ frozen' = [frozen EXCEPT ![s] =
            [slots |-> mem[s], at |-> [i |-> applied[s], t |-> TermAt(log[s], applied[s])]]]
    /\ mem' = [mem EXCEPT ![s] = NoSlots]
    /\ UNCHANGED <<raft, batch, disk, applied, job, incoming, view, network, history>>

(* The run becomes durable, then one edit makes it current and moves the checkpoint. *)
Flush(s) ==
    /\ frozen[s] # None
    /\ Len(manifest[s].tiers) < MaxTiers
    /\ manifest' = [manifest EXCEPT ![s].tiers =
                IF frozen[s].slots = NoSlots THEN @ ELSE <<frozen[s].slots>> \o @,
            ![s].at = frozen[s].at]
    /\ frozen' = [frozen EXCEPT ![s] = None]
    /\ UNCHANGED <<raft, batch, hard, start, files, applied, mem, job, incoming, view, network,
                   history>>

CheckpointEarly(s) ==
    /\ Bug("checkpoint_before_run")
    /\ frozen[s] # None
    /\ manifest[s].at # frozen[s].at
    /\ manifest' = [manifest EXCEPT ![s].at = frozen[s].at]
    /\ UNCHANGED <<raft, batch, hard, start, files, machine, network, history>>

(* The mark is durable before anything depends on it; a lost mark leaves more log. *)
Truncate(s, i) ==
    /\ Flushes
    /\ ~IsBusy(s)
    /\ i > log[s].i /\ i <= applied[s]
    /\ IsDurable(s, i)
    /\ i <= manifest[s].at.i \/ Bug("truncate_past_checkpoint")
    /\ LET t == TermAt(log[s], i) IN
        /\ start' = [start EXCEPT ![s] = [i |-> i, t |-> t]]
        /\ log' = [log EXCEPT ![s] =
                [i |-> i, t |-> t, e |-> SubSeq(@.e, i - @.i + 1, Len(@.e))]]
    /\ UNCHANGED <<term, vote, role, commit, matched, batch, hard, files, manifest, machine, network,
                   history>>

-----------------------------------------------------------------------------
(* Garbage collection. A merge takes tiers lo..hi, counted from the oldest, so that newer tiers do *)
(* not shift them.                                                                                 *)

FromOldest(tiers, n) == Len(tiers) + 1 - n
Inputs(s, lo, hi) ==
    SubSeq(manifest[s].tiers, FromOldest(manifest[s].tiers, hi), FromOldest(manifest[s].tiers, lo))

(* Values of a victim, in key order: <<key, slot>>. *)
RECURSIVE InOrder(_, _)
InOrder(ks, slots) ==
    IF ks = {} THEN <<>> ELSE
    LET k == CHOOSE x \in ks : TRUE IN <<<<k, slots[k]>>>> \o InOrder(ks \ {k}, slots)

ValueRecord(s, pair) == [kind |-> "value", i |-> 0, t |-> 0, op |-> OpAt(s, pair[2])]

BeginMerge(s, lo, hi, victim) ==
    /\ Collects
    /\ job[s] = None
    /\ NextFile(s) <= MaxFiles
    /\ lo <= hi /\ hi <= Len(manifest[s].tiers)
    /\ LET inputs == Inputs(s, lo, hi)
           found == [k \in Keys |-> Look(inputs, k)]
           moved == {k \in Keys : IsPlace(found[k]) /\ found[k][1] = victim}
           order == InOrder(moved, found)
           g == NextFile(s)
           \* Deletes hide nothing below the oldest tier.
           drops == lo = 1 \/ Bug("tombstone_dropped_early")
           out == [k \in Keys |->
                CASE k \in moved -> <<g, CHOOSE n \in 1..Len(order) : order[n][1] = k>>
                  [] found[k] = Deleted /\ drops -> None
                  [] OTHER -> found[k]]
       IN
        \* A merge without moves is useful only if it unites tiers or drops deletes.
        /\ moved # {} \/ (victim = 0 /\ (lo < hi \/ out # inputs[1]))
        /\ moved # {} => victim # HeadSegment(s)
        /\ \A k \in moved : Resolves(s, found[k])
        /\ files' = IF moved = {} THEN files
                    ELSE [files EXCEPT ![s] = WithFile(@, g,
                        [sorted |-> TRUE, synced |-> FALSE, carried |-> [i |-> 0, t |-> 0],
                         records |-> [n \in 1..Len(order) |-> ValueRecord(s, order[n])]])]
        /\ job' = [job EXCEPT ![s] =
                [lo |-> lo, hi |-> hi, out |-> out, victim |-> victim,
                 file |-> IF moved = {} THEN 0 ELSE g]]
    /\ UNCHANGED <<raft, batch, hard, start, manifest, applied, mem, frozen, incoming, view, network,
                   history>>

(* Values become durable, then the run that refers to them, then one edit replaces the inputs by   *)
(* it, at their age.                                                                               *)
CommitMerge(s) ==
    /\ job[s] # None
    /\ LET tiers == manifest[s].tiers
           newer == SubSeq(tiers, 1, FromOldest(tiers, job[s].hi) - 1)
           older == SubSeq(tiers, FromOldest(tiers, job[s].lo) + 1, Len(tiers))
           out == IF job[s].out = NoSlots THEN <<>> ELSE <<job[s].out>>
       IN manifest' = [manifest EXCEPT ![s].tiers =
            IF Bug("merge_output_newest") THEN out \o newer \o older ELSE newer \o out \o older]
    /\ files' = IF job[s].file = 0 \/ Bug("relocated_not_synced") THEN files
                ELSE [files EXCEPT ![s][job[s].file].synced = TRUE]
    /\ job' = [job EXCEPT ![s] = None]
    /\ UNCHANGED <<raft, batch, hard, start, applied, mem, frozen, incoming, view, network, history>>

(* Invariant of removal: before a file is removed, recovery starts after it, and its number is     *)
(* used up.                                                                                        *)
IsLive(s, f) ==
    \E n \in 1..Len(manifest[s].tiers) : \E k \in Keys :
        LET slot == manifest[s].tiers[n][k] IN IsPlace(slot) /\ slot[1] = f
IsOutput(s, f) ==
    \/ job[s] # None /\ job[s].file = f
    \/ incoming[s] # None /\ incoming[s].file = f
IsPinned(s, f) == view[s] # None /\ \E k \in Keys : IsPlace(view[s][k]) /\ view[s][k][1] = f

Reclaim(s, f) ==
    /\ Collects
    /\ f \in FileIds(s)
    /\ f # HeadSegment(s)
    /\ ~IsLive(s, f) \/ (Bug("reclaim_before_edit") /\ job[s] # None /\ job[s].victim = f)
    /\ ~IsOutput(s, f) \/ Bug("reclaim_uncommitted")
    /\ ~IsPinned(s, f) \/ Bug("reclaim_pinned")
    /\ files[s][f].sorted \/ f < WantedFrom(s) \/ Bug("reclaim_wanted_by_raft")
    /\ manifest' = [manifest EXCEPT ![s].next = NextFile(s),
            ![s].from = Max(@, IF Bug("raft_from_ahead") THEN HeadSegment(s) ELSE WantedFrom(s))]
    /\ files' = [files EXCEPT ![s] = WithoutFile(@, f)]
    /\ UNCHANGED <<raft, batch, hard, start, machine, network, history>>

OpenView(s) ==
    /\ Views
    /\ view[s] = None
    /\ \E k \in Keys : IsPlace(Lookup(s, k))
    /\ view' = [view EXCEPT ![s] = [k \in Keys |-> Lookup(s, k)]]
    /\ UNCHANGED <<raft, batch, disk, applied, mem, frozen, job, incoming, network, history>>

CloseView(s) ==
    /\ view[s] # None
    /\ view' = [view EXCEPT ![s] = None]
    /\ UNCHANGED <<raft, batch, disk, applied, mem, frozen, job, incoming, network, history>>

-----------------------------------------------------------------------------
(* Snapshots: the pairs of a view bypass the log. A leader may offer an unnecessary one: it may    *)
(* have missed the acknowledgement.                                                                *)

SendSnapshot(s) ==
    /\ sent < MaxSnapshots
    /\ role[s] = "leader"
    /\ applied[s] > 0
    /\ snaps' = snaps \cup {[term |-> term[s], i |-> applied[s], t |-> TermAt(log[s], applied[s]),
                             pairs |-> [k \in Keys |-> Read(s, Lookup(s, k), k)]]}
    /\ sent' = sent + 1
    /\ UNCHANGED <<raft, batch, disk, machine, granted, lead, acked, history>>

Holds(s, i, t) == i = log[s].i \/ (Has(log[s], i) /\ EntryAt(log[s], i).t = t)
MayInstall(s, m) ==
    /\ m.term >= term[s]
    /\ m.i > commit[s]
    \* Entries after it may have been acknowledged: then the log is kept.
    /\ ~Holds(s, m.i, m.t) \/ Bug("snapshot_over_log")

(* Pairs are staged in a sorted file and a run. *)
ReceiveSnapshot(s, m) ==
    /\ incoming[s] = None
    /\ role[s] # "leader"
    /\ MayInstall(s, m)
    /\ LET held == {k \in Keys : m.pairs[k] # None}
           order == InOrder(held, m.pairs)
           g == NextFile(s)
       IN
        /\ files' = [files EXCEPT ![s] = WithFile(@, g,
                [sorted |-> TRUE, synced |-> FALSE, carried |-> [i |-> 0, t |-> 0],
                 records |-> [n \in 1..Len(order) |-> [kind |-> "value", i |-> 0, t |-> 0,
                    op |-> [key |-> order[n][1], value |-> order[n][2]]]]])]
        /\ incoming' = [incoming EXCEPT ![s] = [stage |-> "aside", of |-> m, file |-> g,
                \* The run deletes the whole range of all older tiers.
                slots |-> [k \in Keys |->
                    IF k \in held THEN <<g, CHOOSE n \in 1..Len(order) : order[n][1] = k>>
                    ELSE Deleted]]]
    /\ UNCHANGED <<raft, batch, hard, start, manifest, applied, mem, frozen, job, view, network,
                   history>>

(* Requires an empty batch and no newer memtable. Values and run become durable; one edit makes    *)
(* them current and moves the checkpoint.                                                          *)
Install(s) ==
    /\ incoming[s] # None /\ incoming[s].stage = "aside"
    /\ MayInstall(s, incoming[s].of)
    /\ role[s] # "leader"
    /\ batch[s] = <<>>
    /\ hard[s].term = term[s] /\ hard[s].vote = vote[s]
    /\ (mem[s] = NoSlots /\ frozen[s] = None) \/ Bug("install_unflushed")
    /\ IF Bug("start_before_edit") THEN UNCHANGED manifest
       ELSE manifest' = [manifest EXCEPT ![s].tiers = <<incoming[s].slots>> \o @,
                ![s].at = [i |-> incoming[s].of.i, t |-> incoming[s].of.t]]
    /\ files' = LET made == IF Bug("snapshot_not_synced") THEN files[s]
                            ELSE [files[s] EXCEPT ![incoming[s].file].synced = TRUE]
                    mark == StartRecord(incoming[s].of.i, incoming[s].of.t)
                IN  [files EXCEPT ![s] = IF Bug("start_before_edit")
                        THEN [made EXCEPT ![HeadSegment(s)].records = Append(@, mark)] ELSE made]
    /\ start' = IF Bug("start_before_edit")
                THEN [start EXCEPT ![s] = [i |-> incoming[s].of.i, t |-> incoming[s].of.t]]
                ELSE start
    /\ incoming' = [incoming EXCEPT ![s].stage = "between"]
    /\ UNCHANGED <<raft, batch, hard, applied, mem, frozen, job, view, network, history>>

(* Writes the mark from which the log starts; the replica continues from there. *)
StartLog(s) ==
    /\ IsBusy(s)
    /\ LET m == incoming[s].of IN
        /\ IF Bug("start_before_edit")
           THEN /\ manifest' = [manifest EXCEPT ![s].tiers = <<incoming[s].slots>> \o @,
                                                ![s].at = [i |-> m.i, t |-> m.t]]
                /\ UNCHANGED <<files, start>>
           ELSE /\ files' = [files EXCEPT ![s][HeadSegment(s)].records = Append(@, StartRecord(m.i, m.t))]
                /\ start' = [start EXCEPT ![s] = [i |-> m.i, t |-> m.t]]
                /\ UNCHANGED manifest
        /\ log' = [log EXCEPT ![s] = Begin(m.i, m.t)]
        /\ commit' = [commit EXCEPT ![s] = m.i]
        /\ applied' = [applied EXCEPT ![s] = m.i]
        /\ term' = [term EXCEPT ![s] = m.term]
        /\ vote' = [vote EXCEPT ![s] = IF m.term > term[s] THEN None ELSE @]
        /\ matched' = [matched EXCEPT ![s] = IF m.term > term[s] THEN m.i ELSE Max(@, m.i)]
        /\ acked' = [acked EXCEPT ![s][m.term] = Max(@, m.i)]
        /\ granted' = WithoutCandidate(s)
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ incoming' = [incoming EXCEPT ![s] = None]
    /\ UNCHANGED <<batch, hard, mem, frozen, job, view, lead, snaps, sent, history>>

-----------------------------------------------------------------------------
(* A crash loses memory and unsynced writes. Opening reads the manifest, then the log, and applies *)
(* again the entries after the checkpoint that the durable commit index covers.                    *)

RECURSIVE ApplyAgain(_, _, _, _, _)
ApplyAgain(s, slots, l, i, upto) ==
    IF i > upto THEN slots
    ELSE ApplyAgain(s, IF Has(l, i) THEN With(slots, EntryAt(l, i).op, DiskPlace(s, i)) ELSE slots,
                    l, i + 1, upto)

Crash(s) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ LET found == DiskLog(s)
           at == manifest[s].at
           repeats == Repeats(s, found)
           l == IF repeats THEN Begin(at.i, at.t) ELSE found
           known == Max(hard[s].commit, Max(at.i, l.i))
           to == Max(Min(known, LastIndex(l)), l.i)
           from == Max(at.i, l.i)
           \* An output without an edit is removed; unsynced files are lost.
           kept == {f \in FileIds(s) : ~files[s][f].sorted \/ (files[s][f].synced /\ IsLive(s, f))}
           later == LastTerm(l) > hard[s].term
       IN
        /\ log' = [log EXCEPT ![s] = l]
        /\ start' = IF repeats THEN [start EXCEPT ![s] = at] ELSE start
        /\ files' = [files EXCEPT ![s] = LET left == [f \in kept |-> files[s][f]] IN
                IF repeats
                THEN [left EXCEPT ![HeadSegment(s)].records = Append(@, StartRecord(at.i, at.t))] ELSE left]
        /\ term' = [term EXCEPT ![s] = IF later THEN LastTerm(l) ELSE hard[s].term]
        /\ vote' = [vote EXCEPT ![s] = IF later THEN None ELSE hard[s].vote]
        /\ commit' = [commit EXCEPT ![s] = to]
        /\ applied' = [applied EXCEPT ![s] = Max(from, Min(to, hard[s].commit))]
        /\ mem' = [mem EXCEPT ![s] =
                ApplyAgain(s, NoSlots, l, from + 1, Min(to, hard[s].commit))]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ matched' = [matched EXCEPT ![s] = 0]
    /\ batch' = [batch EXCEPT ![s] = <<>>]
    /\ frozen' = [frozen EXCEPT ![s] = None]
    /\ job' = [job EXCEPT ![s] = None]
    /\ incoming' = [incoming EXCEPT ![s] = None]
    /\ view' = [view EXCEPT ![s] = None]
    /\ granted' = WithoutCandidate(s)
    /\ UNCHANGED <<hard, manifest, lead, acked, snaps, sent, chosen>>

-----------------------------------------------------------------------------

Consensus(s) ==
    \/ Campaign(s)
    \/ \E c \in Voters : GrantVote(s, c)
    \/ Lead(s)
    \/ \E op \in Ops \ {Noop} : Propose(s, op)
    \/ \E t \in 1..MaxTerm, upto \in 0..MaxLog, learns \in BOOLEAN : Receive(s, t, upto, learns)
    \/ Sync(s)
    \/ Commit(s)

Storage(s) ==
    \/ Apply(s)
    \/ Freeze(s)
    \/ Flush(s)
    \/ CheckpointEarly(s)
    \/ \E i \in 1..MaxLog : Truncate(s, i)
    \/ \E hi \in 1..MaxTiers : \E lo \in 1..hi : \E victim \in {0} \cup FileIds(s) :
            BeginMerge(s, lo, hi, victim)
    \/ CommitMerge(s)
    \/ \E f \in FileIds(s) : Reclaim(s, f)
    \/ OpenView(s)
    \/ CloseView(s)

Moving(s) ==
    \/ SendSnapshot(s)
    \/ \E m \in snaps : ReceiveSnapshot(s, m)
    \/ Install(s)
    \/ StartLog(s)

Next == \E s \in Servers : Consensus(s) \/ Storage(s) \/ Moving(s) \/ Crash(s)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

ElectionSafety == \A t \in 1..MaxTerm : Cardinality(lead[t].by) <= 1

LogMatching ==
    \A a, b \in Servers : \A i \in 1..MaxLog :
        (Has(log[a], i) /\ Has(log[b], i) /\ EntryAt(log[a], i).t = EntryAt(log[b], i).t)
        => \A j \in 1..i : (Has(log[a], j) /\ Has(log[b], j)) => EntryAt(log[a], j) = EntryAt(log[b], j)

(* A leader has all entries committed in earlier terms. *)
LeaderCompleteness ==
    \A s \in Servers : role[s] = "leader" => \A t \in 1..(term[s] - 1) :
        /\ LastIndex(log[s]) >= lead[t].commit
        /\ \A i \in 1..lead[t].commit : Has(log[s], i) => EntryAt(log[s], i) = lead[t].e[i]

StateMachineSafety ==
    \A s \in Servers :
        /\ commit[s] <= Len(chosen)
        /\ applied[s] <= commit[s] \/ IsBusy(s)
        /\ \A i \in 1..commit[s] : Has(log[s], i) => EntryAt(log[s], i) = chosen[i]

(* Every locator in memory or in the durable index leads to a value of its key. *)
NoDanglingLocator ==
    \A s \in Servers : \A k \in Keys :
        \A n \in 1..Len(Tables(s)) : Read(s, Tables(s)[n][k], k) # "dangling"

NoDanglingView ==
    \A s \in Servers : view[s] # None => \A k \in Keys : Read(s, view[s][k], k) # "dangling"

(* The durable index alone equals the state at its checkpoint. *)
CheckpointRight ==
    \A s \in Servers : \A k \in Keys :
        Read(s, Look(manifest[s].tiers, k), k) = ValueAt(manifest[s].at.i, k)

(* A reader on a server sees the state at its applied entry. *)
StateRight ==
    \A s \in Servers : ~IsBusy(s) => \A k \in Keys : Read(s, Lookup(s, k), k) = ValueAt(applied[s], k)

NoDeletedKeyReturns ==
    \A s \in Servers : ~IsBusy(s) => \A k \in Keys :
        ValueAt(applied[s], k) = None => Read(s, Lookup(s, k), k) = None

TruncatedBehindCheckpoint == \A s \in Servers : start[s].i <= manifest[s].at.i

(* After a crash now, the log would have no gap between its start and its end, and would start no  *)
(* later than the index ends.                                                                      *)
LogWhole ==
    \A s \in Servers : LET l == DiskLog(s) IN
        \/ Repeats(s, l)
        \/ l.i = start[s].i /\ LastIndex(l) >= manifest[s].at.i

(* A committed entry is on the disks of a quorum: in the index, or in a log that reaches it. *)
Kept(s) ==
    LET l == DiskLog(s)
        repeats == Repeats(s, l)
    IN  {i \in 1..Len(chosen) :
            \/ i <= manifest[s].at.i
            \/ ~repeats /\ Has(l, i) /\ EntryAt(l, i) = chosen[i]}
AcknowledgedKept ==
    LET kept == UNION {{s} \X Kept(s) : s \in Voters} IN
    \A i \in 1..Len(chosen) : {s \in Voters : <<s, i>> \in kept} \in Quorums

=============================================================================
