------------------------------- MODULE Intents -------------------------------
(* Redis commands on keys of several regions take effect as one. Each key is in a region of its    *)
(* own, and each step of a region is one program: Raft is its outcome. A transaction has a record  *)
(* in the region of its first key, its home.                                                       *)
(*                                                                                                 *)
(* 1. The coordinator creates the record, and reads the keys one after the other.                   *)
(* 2. It writes an intent at each key outside the home, also at those that it only reads: the key  *)
(*    must be as it was read, and have no other intent.                                            *)
(* 3. It commits: one step in the home checks the record and the first key, writes the first key,  *)
(*    and makes the record a committed one.                                                        *)
(* 4. A process that meets an intent asks the record, and resolves the intent: to the new value if  *)
(*    it is committed, to the old one if it is absent. After the last intent it deletes the record. *)
(*                                                                                                 *)
(* Any process may delete a record that is not committed, at any time: that aborts. Time is not     *)
(* needed for it.                                                                                  *)
(*                                                                                                 *)
(* A request may be executed at any time after it was sent, or never, and its answer may be lost.  *)
(* A coordinator that stops does no further step. A coordinator sends the create, each intent and  *)
(* the commit once: after an unknown outcome it gives up, and another transaction tries again.     *)
(* Requests to resolve and to abort may be repeated.                                               *)
(*                                                                                                 *)
(* `truth` is what one order of all commands makes of the keys. A transaction takes its place when *)
(* its commit is executed, and any other command when its own step is. Both lie between the call   *)
(* and its answer, so that the order respects real time.                                           *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Keys, Transactions,
    Effects,    \* of a transaction on a key: some of "put", "delete", "read"
    MaxWrites,  \* of other commands
    OneHome,    \* whether all transactions have the same home
    Bugs

Bug(name) == name \in Bugs

(* The value of a key is its change number, which is that of no other write. It is 0 for an absent  *)
(* key: absence alone returns.                                                                      *)
Absent == 0
Unread == -1
First == 100            \* of a key that is there at the begin
Written(n) == 200 + n   \* by other commands
Initial == {Absent, First}

VARIABLES
    plan,       \* transaction -> key -> effect
    value,      \* key -> value; under an intent the old one
    intent,     \* key -> transaction; 0 for none
    truth,      \* key -> value
    writes,     \* writes of other commands so far
    record,     \* transaction -> "none", "pending", "committed"
    created,    \* transaction -> whether its create was executed
    read,       \* transaction -> key -> value that it read
    intended,   \* transaction -> keys at which its intents were written
    sent,       \* transaction -> whether its commit was sent
    decided,    \* transaction -> "no", "done", "refused": outcome of its commit
    failed,     \* transactions of which the client got the answer that they have no effect
    asked,      \* requests to resolve, as <<key, transaction, "new" or "old">>
    resolved,   \* transaction -> keys at which an intent was resolved to the new value
    misread     \* a command saw what no order explains

state == <<value, intent, truth, writes>>
records == <<record, created>>
coordinator == <<read, intended, sent, decided, failed>>
resolving == <<asked, resolved>>
vars == <<plan, state, records, coordinator, resolving, misread>>

Home(t) == IF OneHome THEN 1 ELSE ((t - 1) % Cardinality(Keys)) + 1
Others(t) == Keys \ {Home(t)}

(* Change number that a transaction gives a key. A key that it only reads keeps its own. *)
New(t, k) ==
    CASE plan[t][k] = "put" -> t
      [] plan[t][k] = "delete" -> Absent
      [] plan[t][k] = "read" -> read[t][k]

Init ==
    /\ plan \in [Transactions -> {p \in [Keys -> Effects] : \E k \in Keys : p[k] # "read"}]
    /\ \E first \in Initial : value = [k \in Keys |-> first]
    /\ intent = [k \in Keys |-> 0]
    /\ truth = value
    /\ writes = 0
    /\ record = [t \in Transactions |-> "none"]
    /\ created = [t \in Transactions |-> FALSE]
    /\ read = [t \in Transactions |-> [k \in Keys |-> Unread]]
    /\ intended = [t \in Transactions |-> {}]
    /\ sent = [t \in Transactions |-> FALSE]
    /\ decided = [t \in Transactions |-> "no"]
    /\ failed = {}
    /\ asked = {}
    /\ resolved = [t \in Transactions |-> {}]
    /\ misread = FALSE

-----------------------------------------------------------------------------
(* Regions execute requests of coordinators *)

Create(t) ==
    /\ record[t] = "none"
    /\ ~created[t] \/ Bug("create_repeated")
    /\ created' = [created EXCEPT ![t] = TRUE]
    /\ record' = [record EXCEPT ![t] = "pending"]
    /\ UNCHANGED <<plan, state, coordinator, resolving, misread>>

Read(t, k) ==
    /\ read[t][k] = Unread
    /\ \A j \in Keys : j < k => read[t][j] # Unread
    /\ t \notin failed
    /\ intent[k] = 0
    /\ read' = [read EXCEPT ![t][k] = value[k]]
    /\ UNCHANGED <<plan, state, records, intended, sent, decided, failed, resolving, misread>>

HasRead(t) == \A k \in Keys : read[t][k] # Unread

(* A request that was sent once may be executed long after the coordinator gave up. *)
Intend(t, k) ==
    /\ k \in Others(t)
    /\ HasRead(t)
    /\ created[t] \/ Bug("intend_before_create")
    /\ k \notin intended[t] \/ Bug("intent_repeated")
    /\ intent[k] = 0 \/ Bug("intent_over_intent")
    /\ intent[k] # t
    /\ value[k] = read[t][k] \/ Bug("intent_unchecked")
    /\ intent' = [intent EXCEPT ![k] = t]
    /\ intended' = [intended EXCEPT ![t] = @ \cup {k}]
    /\ UNCHANGED <<plan, value, truth, writes, records, read, sent, decided, failed, resolving, misread>>

SendCommit(t) ==
    /\ ~sent[t] /\ t \notin failed
    /\ created[t] /\ HasRead(t)
    /\ intended[t] = Others(t) \/ Bug("commit_before_intents")
    /\ sent' = [sent EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<plan, state, records, read, intended, decided, failed, resolving, misread>>

MayCommit(t) ==
    /\ record[t] = "pending" \/ Bug("commit_unchecked")
    /\ \/ intent[Home(t)] = 0 /\ value[Home(t)] = read[t][Home(t)]
       \/ Bug("home_unchecked")

Commit(t) ==
    /\ sent[t] /\ decided[t] = "no"
    /\ IF MayCommit(t)
       THEN /\ decided' = [decided EXCEPT ![t] = "done"]
            /\ record' = [record EXCEPT ![t] = "committed"]
            /\ value' = [value EXCEPT ![Home(t)] = New(t, Home(t))]
            /\ truth' = [k \in Keys |-> IF plan[t][k] = "read" THEN truth[k] ELSE New(t, k)]
            /\ misread' = (misread \/ \E k \in Keys : read[t][k] # truth[k])
       ELSE /\ decided' = [decided EXCEPT ![t] = "refused"]
            /\ UNCHANGED <<value, record, truth, misread>>
    /\ UNCHANGED <<plan, intent, writes, created, read, intended, sent, failed, resolving>>

-----------------------------------------------------------------------------
(* Abort, resolve, forget: by any process, any number of times *)

Abort(t) ==
    /\ record[t] = "pending"
    /\ record' = [record EXCEPT ![t] = "none"]
    /\ UNCHANGED <<plan, state, created, coordinator, resolving, misread>>

(* The coordinator answers that the transaction has no effect. It has not sent the commit, and does *)
(* not send it any more; or the commit was refused; or its own request has aborted it.              *)
Fail(t) ==
    /\ t \notin failed
    /\ \/ ~sent[t] /\ UNCHANGED record
       \/ decided[t] = "refused" /\ UNCHANGED record
       \/ record[t] = "pending" /\ record' = [record EXCEPT ![t] = "none"]
       \/ sent[t] /\ record[t] = "none" /\ Bug("absent_is_failed") /\ UNCHANGED record
    /\ failed' = failed \cup {t}
    /\ UNCHANGED <<plan, state, created, read, intended, sent, decided, resolving, misread>>

(* A process that has met the intent of `t` at `k` asks the record. The intent may be gone since. *)
Ask(t, k) ==
    /\ k \in intended[t]
    /\ record[t] # "pending"
    /\ LET way == IF record[t] = "committed" \/ Bug("absent_is_committed") THEN "new" ELSE "old"
       IN asked' = asked \cup {<<k, t, way>>}
    /\ asked' # asked
    /\ UNCHANGED <<plan, state, records, coordinator, resolved, misread>>

Resolve(t, k, way) ==
    /\ <<k, t, way>> \in asked
    /\ IF intent[k] = t
       THEN /\ intent' = [intent EXCEPT ![k] = 0]
            /\ value' = [value EXCEPT ![k] = IF way = "new" THEN New(t, k) ELSE @]
       ELSE UNCHANGED <<intent, value>>
    /\ resolved' = [resolved EXCEPT ![t] = IF way = "new" THEN @ \cup {k} ELSE @]
    /\ UNCHANGED <<plan, truth, writes, records, coordinator, asked, misread>>

Forget(t) ==
    /\ record[t] = "committed"
    /\ resolved[t] = Others(t) \/ Bug("forgotten_early")
    /\ record' = [record EXCEPT ![t] = "none"]
    /\ UNCHANGED <<plan, state, created, coordinator, resolving, misread>>

-----------------------------------------------------------------------------
(* Commands of one region *)

(* A command without conditions need not know what the key has, but must not remove the intent of a *)
(* transaction that may still commit.                                                               *)
MayOverwrite(k) ==
    IF intent[k] = 0 THEN TRUE ELSE record[intent[k]] # "pending" \/ Bug("pending_overwritten")

Write(k, isDelete) ==
    /\ writes < MaxWrites
    /\ MayOverwrite(k)
    /\ writes' = writes + 1
    /\ value' = [value EXCEPT ![k] = IF isDelete THEN Absent ELSE Written(writes + 1)]
    /\ intent' = [intent EXCEPT ![k] = 0]
    /\ truth' = [truth EXCEPT ![k] = value'[k]]
    /\ UNCHANGED <<plan, records, coordinator, resolving, misread>>

(* A command that reads a key waits until it has no intent: then `KeysRight` is what it needs. *)
ReadOld(k) ==
    /\ Bug("old_while_committed")
    /\ intent[k] # 0
    /\ misread' = (value[k] # truth[k])
    /\ UNCHANGED <<plan, state, records, coordinator, resolving>>

-----------------------------------------------------------------------------
Next ==
    \/ \E t \in Transactions :
        \/ Create(t) \/ SendCommit(t) \/ Commit(t) \/ Abort(t) \/ Fail(t) \/ Forget(t)
        \/ \E k \in Keys :
            \/ Read(t, k) \/ Intend(t, k) \/ Ask(t, k)
            \/ \E way \in {"new", "old"} : Resolve(t, k, way)
    \/ \E k \in Keys : ReadOld(k) \/ \E isDelete \in BOOLEAN : Write(k, isDelete)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

(* What a command of one region reads: all of a transaction, or nothing of it; and no committed      *)
(* effect is lost.                                                                                  *)
KeysRight == \A k \in Keys : intent[k] = 0 => value[k] = truth[k]
(* An intent can still be resolved, in one way only. *)
IntentsRight ==
    \A k \in Keys : intent[k] # 0 =>
        IF decided[intent[k]] = "done" THEN New(intent[k], k) = truth[k] ELSE value[k] = truth[k]
(* A transaction commits on the values that all its keys have at that moment. *)
ReadsRight == ~misread
FailedHasNoEffect == \A t \in failed : decided[t] # "done"
(* A record says what was decided as long as an intent of it is there. *)
RecordsKept ==
    \A k \in Keys : intent[k] # 0 =>
        (record[intent[k]] = "committed" <=> decided[intent[k]] = "done")
===============================================================================
