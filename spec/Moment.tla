-------------------------------- MODULE Moment --------------------------------
(* The cut of all regions at one moment, without clocks. The placement leader requests a pause of  *)
(* every region; a leader in a pause proposes nothing, waits until its log is committed, and       *)
(* answers range, term and last index. Once the ranges of some answers tile the keys, the          *)
(* placement leader requests a seal of exactly these: a leader that is still in that pause         *)
(* confirms its leadership, and goes on. All else abandons the moment.                             *)
(*                                                                                                 *)
(* Raft is its outcome; KvsRaft.tla and CommitReturn.tla have the protocol. `log` is the log of    *)
(* each term's leader, which stays one until a crash: it does not receive that a later one was     *)
(* elected. `chosen` is what a quorum acknowledged, and only the last leader can add to it. A new  *)
(* leader has all of it, and any part of what an earlier leader appended. `visible` is the part    *)
(* that a server has found committed: clients got its answers, and reads return it.                *)
(*                                                                                                 *)
(* A leader confirms by its lease, while which no later leader is elected (`LeaseExclusive` in     *)
(* CommitReturn.tla), or by a round that begins now: if a quorum answers, no later leader was      *)
(* elected before now. Both mean that this moment is in the term of the last leader.               *)
(*                                                                                                 *)
(* A request is a number: whatever was requested may be received at any time, often or never. The  *)
(* same holds for answers, which stay in a set.                                                    *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Change,         \* "none"; "split" of region 1 into 1 and 3; "merge" of region 1 into 2
    Electing,       \* regions with elections after their first: regions without a change are alike
    MaxElections,   \* of these together
    MaxWrites, MaxMoments, MaxCrashes,
    Bugs

Bug(name) == name \in Bugs

Regions == IF Change = "split" THEN 1..3 ELSE 1..2
Keys == IF Change = "split" THEN 1..3 ELSE 1..2
Terms == 1..(1 + MaxElections)
Writes == 1..MaxWrites
Moments == 1..MaxMoments

(* An entry is its term and its content: a write, or one of these. *)
First == 0      \* first entry of a leader
Prepare == -1   \* of a merge, in the source: no write follows
Ranged == -2    \* the range changes: a split, or the commit of a merge
Entry(t, v) == [t |-> t, v |-> v]

VARIABLES
    top,        \* region -> term of its last leader; 0 before the split that makes the region
    log,        \* region -> term -> log of that term's leader
    chosen, visible,
    crashed,    \* leaders, as <<region, term>>, that have crashed
    latest,     \* region -> term -> last moment for which that leader paused; 0 for none
    paused,     \* region -> term -> whether the leader is in that pause
    led,        \* deliberate bug: region -> term -> whether it was the last leader at the begin of the pause
    requested,  \* moments requested
    answers,    \* answers to requests of a pause
    taken,      \* moment -> answers of which a seal was requested; {} before
    sealed,     \* answers to requests of a seal
    done,       \* moments reported complete
    key,        \* write -> its key, for those that began
    before,     \* write -> what was visible when it began
    seen,       \* moment -> what was visible when it was requested
    begun       \* moment -> writes that had begun when it was reported complete

raft == <<top, log, chosen, visible, crashed>>
pauses == <<latest, paused, led>>
moments == <<requested, answers, taken, sealed, done, seen, begun>>
clients == <<key, before>>
vars == <<raft, pauses, moments, clients>>

Init ==
    /\ top = [r \in Regions |-> IF r = 3 THEN 0 ELSE 1]
    /\ log = [r \in Regions |-> [t \in Terms |->
            IF r # 3 /\ t = 1 THEN <<Entry(1, First)>> ELSE <<>>]]
    /\ chosen = [r \in Regions |-> log[r][1]]
    /\ visible = [r \in Regions |-> Len(chosen[r])]
    /\ crashed = {}
    /\ latest = [r \in Regions |-> [t \in Terms |-> 0]]
    /\ paused = [r \in Regions |-> [t \in Terms |-> FALSE]]
    /\ led = [r \in Regions |-> [t \in Terms |-> FALSE]]
    /\ requested = 0
    /\ answers = {}
    /\ taken = [m \in Moments |-> {}]
    /\ sealed = {}
    /\ done = {}
    /\ key = <<>>
    /\ before = <<>>
    /\ seen = [m \in Moments |-> {}]
    /\ begun = [m \in Moments |-> 0]

-----------------------------------------------------------------------------
(* Logs *)

Has(l, v) == \E i \in 1..Len(l) : l[i].v = v
Upto(l, n) == SubSeq(l, 1, n)
IsPrefix(a, b) == Len(a) <= Len(b) /\ a = Upto(b, Len(a))

(* The range of a region after all entries of a log. *)
Range(r, l) ==
    CASE Change = "split" /\ r = 1 -> IF Has(l, Ranged) THEN {1} ELSE {1, 2}
      [] Change = "split" /\ r = 2 -> {3}
      [] Change = "split" /\ r = 3 -> {2}
      [] Change = "merge" /\ r = 2 -> IF Has(l, Ranged) THEN {1, 2} ELSE {2}
      [] OTHER -> {r}

(* The region from which `r` has key `k` since the last change of ranges; 0 for none. It takes no   *)
(* writes of the key afterwards.                                                                    *)
Origin(r, k) ==
    CASE Change = "split" /\ r = 3 -> 1
      [] Change = "merge" /\ r = 2 /\ k = 1 -> 1
      [] OTHER -> 0

WritesIn(l) == {w \in DOMAIN key : Has(l, w)}
Visible == UNION {WritesIn(Upto(chosen[r], visible[r])) : r \in Regions}

(* Writes of key `k` in region `r` up to index `n`, and in the region from which it has the key. *)
Contents(r, n, k) ==
    LET l == Upto(chosen[r], IF n < Len(chosen[r]) THEN n ELSE Len(chosen[r]))
        has_origin == Origin(r, k) # 0 /\ (r = 3 \/ Has(l, Ranged))
    IN  {w \in WritesIn(l) \cup (IF has_origin THEN WritesIn(chosen[Origin(r, k)]) ELSE {}) : key[w] = k}

(* Writes of a set of answers. *)
Cut(A) == UNION {UNION {Contents(a.r, a.n, k) : k \in a.range} : a \in A}

-----------------------------------------------------------------------------
(* Regions *)

Leads(r, t) == t <= top[r] /\ <<r, t>> \notin crashed

RECURSIVE Sum(_)
Sum(S) == IF S = {} THEN 0 ELSE LET r == CHOOSE r \in S : TRUE IN
    (IF top[r] = 0 THEN 0 ELSE top[r] - 1) + Sum(S \ {r})

Elect(r) ==
    /\ r \in Electing /\ top[r] > 0
    /\ Sum(Electing \cap Regions) < MaxElections
    /\ \E t \in 1..top[r] : \E n \in Len(chosen[r])..Len(log[r][t]) :
        /\ IsPrefix(chosen[r], Upto(log[r][t], n))
        /\ log' = [log EXCEPT ![r][top[r] + 1] = Append(Upto(log[r][t], n), Entry(top[r] + 1, First))]
    /\ top' = [top EXCEPT ![r] = @ + 1]
    /\ UNCHANGED <<chosen, visible, crashed, pauses, moments, clients>>

(* A restarted server leads only in a later term. *)
Crash(r, t) ==
    /\ Leads(r, t)
    /\ Cardinality(crashed) < MaxCrashes
    /\ crashed' = crashed \cup {<<r, t>>}
    /\ latest' = [latest EXCEPT ![r][t] = 0]
    /\ paused' = [paused EXCEPT ![r][t] = FALSE]
    /\ UNCHANGED <<top, log, chosen, visible, led, moments, clients>>

(* A quorum has acknowledged an entry of the last term. *)
Choose(r) ==
    /\ top[r] > 0
    /\ LET l == log[r][top[r]] IN \E n \in (Len(chosen[r]) + 1)..Len(l) :
        /\ l[n].t = top[r]
        /\ chosen' = [chosen EXCEPT ![r] = Upto(l, n)]
    /\ UNCHANGED <<top, log, visible, crashed, pauses, moments, clients>>

(* A server finds what is committed, answers its clients, and serves reads of it. *)
Show(r) ==
    /\ visible[r] < Len(chosen[r])
    /\ visible' = [visible EXCEPT ![r] = Len(chosen[r])]
    /\ UNCHANGED <<top, log, chosen, crashed, pauses, moments, clients>>

MayPropose(r, t) == Leads(r, t) /\ (~paused[r][t] \/ Bug("pause_proposes"))

Appends(r, t, v) ==
    /\ log' = [log EXCEPT ![r][t] = Append(@, Entry(t, v))]
    /\ UNCHANGED <<top, chosen, visible, crashed, pauses, moments, clients>>

(* Each write is proposed once: a repetition is another write. *)
Write(r, t, w) ==
    /\ MayPropose(r, t)
    /\ key[w] \in Range(r, log[r][t])
    /\ ~Has(log[r][t], Prepare)
    /\ \A o \in Regions, u \in Terms : ~Has(log[o][u], w)
    /\ Appends(r, t, w)

Split(t) ==
    /\ Change = "split"
    /\ MayPropose(1, t)
    /\ ~Has(log[1][t], Ranged)
    /\ Appends(1, t, Ranged)

(* The new region starts where a server has applied the split, perhaps before its parent's leader   *)
(* does.                                                                                            *)
Start ==
    /\ Change = "split"
    /\ top[3] = 0
    /\ Has(Upto(chosen[1], visible[1]), Ranged)
    /\ top' = [top EXCEPT ![3] = 1]
    /\ log' = [log EXCEPT ![3][1] = <<Entry(1, First)>>]
    /\ UNCHANGED <<chosen, visible, crashed, pauses, moments, clients>>

PrepareMerge(t) ==
    /\ Change = "merge"
    /\ MayPropose(1, t)
    /\ ~Has(log[1][t], Prepare)
    /\ Appends(1, t, Prepare)

(* The source still has its leaders: their servers may not have applied this. *)
CommitMerge(t) ==
    /\ Change = "merge"
    /\ MayPropose(2, t)
    /\ Has(Upto(chosen[1], visible[1]), Prepare)
    /\ ~Has(log[2][t], Ranged)
    /\ Appends(2, t, Ranged)

-----------------------------------------------------------------------------
(* Clients *)

Begin(k) ==
    /\ Len(key) < MaxWrites
    /\ key' = Append(key, k)
    /\ before' = Append(before, Visible)
    /\ UNCHANGED <<raft, pauses, moments>>

-----------------------------------------------------------------------------
(* Moments. The number of a moment names it and ascends, also when another placement leader follows. *)

Ask ==
    /\ requested < MaxMoments
    /\ requested' = requested + 1
    /\ seen' = [seen EXCEPT ![requested + 1] = Visible]
    /\ UNCHANGED <<raft, pauses, answers, taken, sealed, done, begun, clients>>

(* A leader pauses at most once for a moment, and not for an earlier one afterwards. *)
Pause(r, t, m) ==
    /\ m <= requested
    /\ Leads(r, t)
    /\ m > latest[r][t] \/ (m = latest[r][t] /\ ~paused[r][t] /\ Bug("pauses_twice"))
    /\ latest' = [latest EXCEPT ![r][t] = m]
    /\ paused' = [paused EXCEPT ![r][t] = TRUE]
    /\ led' = [led EXCEPT ![r][t] = Bug("round_before_request") /\ top[r] = t]
    /\ UNCHANGED <<raft, moments, clients>>

(* The leader's log is committed, and applied: the range is that after its last entry. *)
Answer(r, t) ==
    LET l == log[r][t]
        ranges == IF Bug("range_before_apply") THEN {Range(r, Upto(l, n)) : n \in 1..Len(l)}
                  ELSE {Range(r, l)}
    IN
    /\ Leads(r, t) /\ paused[r][t]
    /\ IsPrefix(l, chosen[r]) \/ Bug("answer_uncommitted")
    /\ \E range \in ranges :
        answers' = answers \cup {[m |-> latest[r][t], r |-> r, t |-> t, n |-> Len(l), range |-> range]}
    /\ answers' # answers
    /\ UNCHANGED <<raft, pauses, requested, taken, sealed, done, seen, begun, clients>>

(* After a time on the leader's own clock, or for any other reason. *)
EndPause(r, t) ==
    /\ paused[r][t]
    /\ Bug("pause_without_end") => \E m \in done : m = latest[r][t]
    /\ paused' = [paused EXCEPT ![r][t] = FALSE]
    /\ UNCHANGED <<raft, latest, led, moments, clients>>

Tiles(A) ==
    /\ \A a \in A, b \in A : a # b => a.range \cap b.range = {}
    /\ UNION {a.range : a \in A} = Keys

(* The placement leader knows the regions from reports, which may be old. *)
Take(m) ==
    /\ m <= requested /\ taken[m] = {}
    /\ \E A \in SUBSET {a \in answers : a.m = m \/ (a.m < m /\ Bug("older_answer"))} :
        /\ \A a \in A, b \in A : a # b => a.r # b.r
        /\ IF Bug("untiled") THEN {a.r : a \in A} = {1, 2} ELSE Tiles(A)
        /\ taken' = [taken EXCEPT ![m] = A]
    /\ UNCHANGED <<raft, pauses, requested, answers, sealed, done, seen, begun, clients>>

(* A lease that lasts now, or a round that begins now and that a quorum will answer. *)
Confirms(r, t) == IF Bug("round_before_request") THEN led[r][t] ELSE top[r] = t

(* The leader goes on at once, although the answers to its round come later. *)
Seal(r, t) ==
    /\ Leads(r, t)
    /\ paused[r][t] \/ Bug("seal_after_pause")
    /\ latest[r][t] > 0 /\ taken[latest[r][t]] # {}
    /\ Confirms(r, t)
    /\ sealed' = sealed \cup {<<latest[r][t], r, t>>}
    /\ sealed' # sealed
    /\ paused' = [paused EXCEPT ![r][t] = FALSE]
    /\ UNCHANGED <<raft, latest, led, requested, answers, taken, done, seen, begun, clients>>

IsSealed(m, a) ==
    \/ <<m, a.r, a.t>> \in sealed
    \/ Bug("no_seal")
    \/ Bug("seal_of_any_term") /\ \E t \in Terms : <<m, a.r, t>> \in sealed

(* The placement leader confirms at last that it still leads: no later one has requested a moment. *)
Finish(m) ==
    /\ taken[m] # {} /\ m \notin done
    /\ m = requested \/ Bug("former_leader")
    /\ \A a \in taken[m] : IsSealed(m, a)
    /\ done' = done \cup {m}
    /\ begun' = [begun EXCEPT ![m] = Len(key)]
    /\ UNCHANGED <<raft, pauses, requested, answers, taken, sealed, seen, clients>>

-----------------------------------------------------------------------------
Next ==
    \/ \E r \in Regions :
        \/ Elect(r) \/ Choose(r) \/ Show(r)
        \/ \E t \in Terms :
            \/ Crash(r, t) \/ Answer(r, t) \/ EndPause(r, t) \/ Seal(r, t)
            \/ \E w \in DOMAIN key : Write(r, t, w)
            \/ \E m \in Moments : Pause(r, t, m)
    \/ \E t \in Terms : Split(t) \/ PrepareMerge(t) \/ CommitMerge(t)
    \/ Start
    \/ \E k \in Keys : Begin(k)
    \/ Ask
    \/ \E m \in Moments : Take(m) \/ Finish(m)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants. What was answered is visible, so that each holds for answered writes, too. *)

(* What was visible before a write of the cut began is in the cut: in the order of real time, and    *)
(* for every client, whatever it read and whatever it carries.                                      *)
Closed == \A m \in done : LET C == Cut(taken[m]) IN \A w \in C : before[w] \subseteq C
(* What was visible before the request of the moment is in the cut. *)
HasEarlier == \A m \in done : seen[m] \subseteq Cut(taken[m])
(* What began after the moment was reported complete is not in the cut. It follows from            *)
(* `CutCommitted`: what is in the cut was committed before.                                        *)
LacksLater == \A m \in done : \A w \in Cut(taken[m]) : w <= begun[m]
(* A region's part of the cut ends with a committed entry, in the term that the answer names. *)
CutCommitted ==
    \A m \in done : \A a \in taken[m] : a.n <= Len(chosen[a.r]) /\ chosen[a.r][a.n].t = a.t
(* A later moment has all that an earlier one has. *)
Ascending ==
    \A m \in done, o \in done : m < o => Cut(taken[m]) \subseteq Cut(taken[o])
(* Writes go on without the placement group: each pause can end by a step of the leader alone. *)
WritesGoOn == \A r \in Regions, t \in Terms : paused[r][t] => ENABLED EndPause(r, t)

(* A part of the runs: a former placement leader goes on with the first of two moments once the second one  *)
(* is complete, and all elections and writes are later. It is the shortest way to break `Ascending`.       *)
FirstEndsLast ==
    /\ \A r \in Regions, t \in Terms : latest[r][t] = 1 => 2 \in done
    /\ \A r \in Regions : top[r] > 1 => 2 \in done
    /\ Len(key) > 0 => 2 \in done

(* The same over time: each write is proposed in the end, whether or not the placement leader does   *)
(* another step.                                                                                    *)
HasBegun(w) == w \in DOMAIN key
IsProposed(w) == \E r \in Regions, t \in Terms : Has(log[r][t], w)
Fair ==
    /\ Spec
    /\ \A r \in Regions, t \in Terms : WF_vars(EndPause(r, t))
    /\ \A w \in Writes : WF_vars(HasBegun(w) /\ \E r \in Regions : Write(r, top[r], w))
AllProposed == \A w \in Writes : HasBegun(w) ~> IsProposed(w)
===============================================================================
