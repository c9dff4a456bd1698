------------------------------- MODULE Sessions -------------------------------
(* Requests of a session take effect at most once, although the client repeats them after unknown  *)
(* outcomes. The session numbers its requests. The command with the effect of a request also       *)
(* writes its record, a pair beside the key: the number, the result, and the time at which the     *)
(* record expires. The leader reads it when it proposes: a repetition gets the first result.       *)
(*                                                                                                 *)
(* One session and one key. `log` is the history of the key in each term, also if a split, a merge *)
(* or a snapshot moves its pairs: the terms of its next region follow. Raft is its outcome as in   *)
(* Moment.tla. An earlier leader still proposes, because it does not receive that it was deposed.  *)
(* `chosen` is what a quorum acknowledged.                                                         *)
(*                                                                                                 *)
(* Time is that of no clock. The cluster's time is the median of the clocks: at most `Apart` from  *)
(* it. The clock of one node is at most `Wrong` from it, which may be more. Merges of each replica *)
(* drop a record once the cluster's time is `Grace` after its expiry. Whether they did so is       *)
(* chosen each time that the record is read.                                                       *)
(*                                                                                                 *)
(* Repetitions end in one of two ways. By the client: it sends none from `GiveUp` after the first, *)
(* and each is received within `MaxDelay`. Or by the leader (`Deadlines`): each has the same       *)
(* deadline, which is also the expiry of the record, and is refused after it by the cluster's      *)
(* time; the client may repeat at any time, and a message may take any time.                       *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    MaxTerm, MaxLog, MaxRequests, MaxTime,
    Life,           \* time from a request to the expiry of its record; with `Deadlines` at most
    Grace, GiveUp, MaxDelay, Apart, Wrong,
    Deadlines,
    OneRecord,      \* whether a later request of the session replaces the record; otherwise each has its own
    Conditional,    \* whether requests are refused until another client has written
    Bugs

Bug(name) == name \in Bugs
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x

Terms == 1..MaxTerm
Requests == 1..MaxRequests

(* An entry: its term, its kind, and for requests number, result and expiry. A result is the count *)
(* of effects, or 0 for a refusal. Kinds: "first" of a leader; "move" of the key's pairs; "other"  *)
(* client's write; "request" with effect and record; deliberate bug: "effect" and "record" alone.  *)
Entry(t, kind, n, result, expiry) == [t |-> t, kind |-> kind, n |-> n, result |-> result, expiry |-> expiry]
Plain(t, kind) == Entry(t, kind, 0, 0, 0)

VARIABLES
    now,
    top, log, chosen,
    started,    \* request -> time of its first attempt; 0 before
    sent,       \* request -> time of its last attempt
    deadline,   \* request -> deadline of its attempts; 0 without
    answers     \* answers sent, as <<request, result>>

raft == <<top, log, chosen>>
client == <<started, sent, deadline>>
vars == <<now, raft, client, answers>>

Init ==
    /\ now = 1
    /\ top = 1
    /\ log = [t \in Terms |-> IF t = 1 THEN <<Plain(1, "first")>> ELSE <<>>]
    /\ chosen = log[1]
    /\ started = [n \in Requests |-> 0]
    /\ sent = [n \in Requests |-> 0]
    /\ deadline = [n \in Requests |-> 0]
    /\ answers = {}

Tick ==
    /\ now < MaxTime
    /\ now' = now + 1
    /\ UNCHANGED <<raft, client, answers>>

-----------------------------------------------------------------------------
(* Raft *)

Upto(l, n) == SubSeq(l, 1, n)
IsPrefix(a, b) == Len(a) <= Len(b) /\ a = Upto(b, Len(a))

(* A leader whose log moves the pairs proposes nothing more for the key: the next region does. *)
Extends(t, entries) ==
    /\ t <= top
    /\ \A i \in 1..Len(log[t]) : ~(log[t][i].t = t /\ log[t][i].kind = "move")
    /\ Len(log[t]) + Len(entries) <= MaxLog
    /\ log' = [log EXCEPT ![t] = @ \o entries]
    /\ UNCHANGED <<now, top, chosen, client>>

Elect ==
    /\ top < MaxTerm
    /\ \E t \in 1..top : \E n \in Len(chosen)..Len(log[t]) :
        /\ IsPrefix(chosen, Upto(log[t], n))
        /\ log' = [log EXCEPT ![top + 1] = Append(Upto(log[t], n), Plain(top + 1, "first"))]
    /\ top' = top + 1
    /\ UNCHANGED <<now, chosen, client, answers>>

Choose ==
    /\ \E n \in (Len(chosen) + 1)..Len(log[top]) :
        /\ log[top][n].t = top
        /\ chosen' = Upto(log[top], n)
    /\ UNCHANGED <<now, top, log, client, answers>>

Move(t) ==
    /\ Extends(t, <<Plain(t, "move")>>)
    /\ UNCHANGED answers

(* Another client's write makes the condition of requests true. *)
Other(t) ==
    /\ Conditional
    /\ \A i \in 1..Len(log[t]) : log[t][i].kind # "other"
    /\ Extends(t, <<Plain(t, "other")>>)
    /\ UNCHANGED answers

-----------------------------------------------------------------------------
(* The client. It begins a request after the answer to the one before, or without an answer if it  *)
(* gives up, and then repeats the earlier one no longer.                                           *)

Current == Cardinality({n \in Requests : started[n] > 0})

Request ==
    /\ Current < MaxRequests
    /\ started' = [started EXCEPT ![Current + 1] = now]
    /\ sent' = [sent EXCEPT ![Current + 1] = now]
    /\ \E life \in IF Deadlines THEN 0..Life ELSE {0} :
        deadline' = [deadline EXCEPT ![Current + 1] = IF Deadlines THEN now + life ELSE 0]
    /\ UNCHANGED <<now, raft, answers>>

Repeat ==
    /\ Current > 0 /\ ~Deadlines
    /\ sent[Current] < now
    /\ now < started[Current] + GiveUp \/ Bug("client_repeats_late")
    /\ sent' = [sent EXCEPT ![Current] = now]
    /\ UNCHANGED <<now, raft, started, deadline, answers>>

(* An attempt may be received now, and is not refused. *)
IsReceived(n) ==
    /\ sent[n] > 0
    /\ IF Deadlines THEN now - Apart <= deadline[n] \/ Bug("late_attempt_accepted")
       ELSE now <= sent[n] + MaxDelay

-----------------------------------------------------------------------------
(* The leader *)

IsEffect(entry) == entry.kind = "effect" \/ (entry.kind = "request" /\ entry.result > 0)
IsRecord(entry) == entry.kind \in {"request", "record"}
Effects(l) == {i \in 1..Len(l) : IsEffect(l[i])}

IsCommitted(l, i) == i <= Len(chosen) /\ chosen[i] = l[i]

(* Places of the records that a leader's state and the entries of its log that are not applied       *)
(* hold together.                                                                                   *)
Records(l) ==
    LET lost == {i \in 1..Len(l) :
            \/ l[i].kind = "move" /\ Bug("record_by_session")
            \/ l[i].kind = "other" /\ Bug("deleted_with_key")}
        all == {i \in 1..Len(l) :
            /\ IsRecord(l[i])
            /\ \A m \in lost : i > m
            /\ Bug("lookup_of_applied") => IsCommitted(l, i)
            /\ Bug("lookup_of_own_term") => IsCommitted(l, i) \/ l[i].t = l[Len(l)].t}
    IN  IF OneRecord /\ all # {} THEN {MaxOf(all)} ELSE all

(* Merges drop records of applied entries. *)
MayBeDropped(l, i) ==
    /\ IsCommitted(l, i)
    /\ now + Apart > l[i].expiry + (IF Bug("dropped_at_expiry") THEN 0 ELSE Grace)

MayBeHidden(l, i) == Bug("hidden_by_clock") /\ now + Wrong >= l[i].expiry

(* The record of request `n`, or of a later one that replaced it, is there. *)
Concerns(entry, n) == IF OneRecord /\ ~Bug("older_number_executed") THEN entry.n >= n ELSE entry.n = n

(* The leader may find no record, and may find one. *)
MayMiss(l, n) == \A i \in Records(l) : Concerns(l[i], n) => MayBeDropped(l, i) \/ MayBeHidden(l, i)
Found(l, n) == {i \in Records(l) : l[i].n = n}

(* The earliest expiry that the cluster's time may yield, because a later one only keeps the record    *)
(* longer; but not before that of a record that is replaced.                                         *)
Expiry(t, n) ==
    LET clock == now - (IF Bug("expiry_by_node_clock") THEN Wrong ELSE Apart)
        replaced == IF OneRecord /\ ~Bug("expiry_shortened") THEN {log[t][i].expiry : i \in Records(log[t])}
                    ELSE {}
    IN  MaxOf({IF Deadlines THEN deadline[n] ELSE clock + Life} \cup replaced)

Result(l) ==
    IF Conditional /\ \A i \in 1..Len(l) : l[i].kind # "other" THEN 0 ELSE Cardinality(Effects(l)) + 1

(* No record: the request is evaluated on the state after all entries of the log. *)
Propose(t, n) ==
    /\ t <= top
    /\ IsReceived(n)
    /\ MayMiss(log[t], n)
    /\ LET result == Result(log[t])
           expiry == Expiry(t, n)
       IN
        IF result = 0 /\ Bug("refusal_unrecorded")
        THEN /\ answers' = answers \cup {<<n, 0>>}
             /\ UNCHANGED <<now, raft, client>>
        ELSE /\ UNCHANGED answers
             /\ IF Bug("record_separate")
                THEN Extends(t, <<Entry(t, "effect", n, result, 0), Entry(t, "record", n, result, expiry)>>)
                ELSE Extends(t, <<Entry(t, "request", n, result, expiry)>>)

(* The answer to an attempt that was proposed, or to a repetition that finds the record: once the     *)
(* entry of the record is committed.                                                                *)
Answer(n) ==
    /\ \/ \E i \in Effects(chosen) \cup {j \in 1..Len(chosen) : IsRecord(chosen[j])} :
            chosen[i].n = n /\ answers' = answers \cup {<<n, chosen[i].result>>}
       \/ /\ Bug("answer_uncommitted_record")
          /\ IsReceived(n)
          /\ \E t \in 1..top : \E i \in Found(log[t], n) :
                answers' = answers \cup {<<n, log[t][i].result>>}
    /\ answers' # answers
    /\ UNCHANGED <<now, raft, client>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick \/ Elect \/ Choose \/ Request \/ Repeat
    \/ \E t \in 1..top : Move(t) \/ Other(t)
    \/ \E n \in Requests : Answer(n) \/ \E t \in 1..top : Propose(t, n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

AtMostOnce == \A i \in Effects(chosen), j \in Effects(chosen) : chosen[i].n = chosen[j].n => i = j
(* An answer has the result of the one effect, or of the refusal, which then has no effect. *)
AnswersTrue ==
    \A a \in answers : \A i \in Effects(chosen) : chosen[i].n = a[1] => chosen[i].result = a[2]
(* The effect, or the refusal, of an answered request is not lost. *)
AnsweredKept ==
    \A a \in answers : \E i \in 1..Len(chosen) : chosen[i].n = a[1] /\ chosen[i].result = a[2]
===============================================================================
