---------------------------- MODULE CommitReturn ----------------------------
(* Time of a write's answer and permitted results of a read: commit return, the overlay of entries *)
(* committed and not applied, leases on drifting clocks, read index, follower reads.               *)
(*                                                                                                 *)
(* One key. Each entry of the log writes it, so that the state after entry i is named i, and a     *)
(* read returns an index. Disks are not modelled here: KvsRaft.tla has them. Clocks are not        *)
(* numbers but the distances to the slowest; promises with a time limit count down.                *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Servers, None,
    MaxTerm, MaxLog, MaxCrashes,
    MaxRounds,      \* heartbeat rounds of one term, at most
    MaxTransfers,
    ElectionTicks,  \* vote hold after a message of a leader, on the follower's clock
    Drift,          \* distance of two clocks, at most: over any time they differ by twice that
    CommitReturn,   \* whether a write is answered when committed; otherwise when applied
    Overlay,        \* whether a read sees entries committed and not applied
    Writes,         \* whether clients write; a leader's first entry counts as a write too
    Kinds,          \* of reads: "lease", "index"
    Led,            \* whether the first leader leads from the start
    Bugs

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x
Bug(name) == name \in Bugs
Quorums == {Q \in SUBSET Servers : 2 * Cardinality(Q) > Cardinality(Servers)}
LeaseTicks == IF Bug("lease_without_drift") THEN ElectionTicks ELSE ElectionTicks - 2 * Drift

Symmetry == Permutations(Servers)

VARIABLES
    term, vote, role, log, commit, applied,
    ahead,      \* distance of each clock to the slowest
    hold,       \* ticks of the vote hold
    lease,      \* ticks of a leader's lease
    leading,    \* whether a leader has applied an entry of its own term
    transferred, \* whether a leader offered a leadership transfer in its term
    round,      \* a leader's last round: its number, and its age in ticks
    votes,      \* votes of the candidates
    lead,       \* term -> longest log and highest commit index of its leader
    acked,      \* server -> term -> last entry it acknowledged
    beats,      \* rounds sent
    answers,    \* answers to rounds
    offers,     \* terms in which leadership was offered, and the target
    chosen,     \* committed entries
    answered,   \* last write with an answer to the client
    shown,      \* last state that a finished read returned
    read,       \* read in progress
    wrong,      \* invariants that a finished read violated
    crashes, transfers

raft == <<term, vote, role, log, commit, applied, votes>>
leases == <<ahead, hold, lease, leading, transferred, round>>
network == <<lead, acked, beats, answers, offers>>
clients == <<chosen, answered, shown, read, wrong>>
counts == <<crashes, transfers>>
vars == <<raft, leases, network, clients, counts>>

NoRound == [n |-> 0, age |-> 0]

(* `first` leads term 1 from the start, and all servers have applied its first entry. *)
InitialTerm(first) ==
    LET one == IF first = None THEN 0 ELSE 1
        noop == IF first = None THEN <<>> ELSE <<1>>
    IN
    /\ term = [s \in Servers |-> one]
    /\ vote = [s \in Servers |-> first]
    /\ role = [s \in Servers |-> IF s = first THEN "leader" ELSE "follower"]
    /\ log = [s \in Servers |-> noop]
    /\ commit = [s \in Servers |-> one]
    /\ applied = [s \in Servers |-> one]
    /\ leading = [s \in Servers |-> s = first]
    /\ lead = [t \in 1..MaxTerm |->
            IF t = one THEN [by |-> first, e |-> noop, commit |-> one]
            ELSE [by |-> None, e |-> <<>>, commit |-> 0]]
    /\ acked = [s \in Servers |-> [t \in 1..MaxTerm |-> IF t = one THEN one ELSE 0]]
    /\ chosen = noop
    /\ answered = one

Init ==
    /\ IF Led THEN \E first \in Servers : InitialTerm(first) ELSE InitialTerm(None)
    /\ votes = [s \in Servers |-> {}]
    /\ ahead = [s \in Servers |-> 0]
    /\ hold = [s \in Servers |-> 0]
    /\ lease = [s \in Servers |-> 0]
    /\ transferred = [s \in Servers |-> FALSE]
    /\ round = [s \in Servers |-> NoRound]
    /\ beats = {}
    /\ answers = {}
    /\ offers = {}
    /\ shown = 0
    /\ read = None
    /\ wrong = {}
    /\ crashes = 0
    /\ transfers = 0

-----------------------------------------------------------------------------
(* Time: no clock gets further ahead of another than the drift allows. *)

Down(n) == IF n = 0 THEN 0 ELSE n - 1

Tick(s) ==
    LET moved == [ahead EXCEPT ![s] = @ + 1]
        least == CHOOSE x \in {moved[o] : o \in Servers} : \A o \in Servers : x <= moved[o]
    IN
    /\ ahead' = [o \in Servers |-> moved[o] - least]
    /\ \A o \in Servers : ahead'[o] <= Drift
    /\ hold' = [hold EXCEPT ![s] = Down(@)]
    /\ lease' = [lease EXCEPT ![s] = Down(@)]
    /\ round' = [round EXCEPT ![s].age = IF round[s].n = 0 THEN 0 ELSE Min(@ + 1, LeaseTicks)]
    /\ UNCHANGED <<raft, leading, transferred, network, clients, counts>>

-----------------------------------------------------------------------------
(* Raft *)

LastTerm(l) == IF l = <<>> THEN 0 ELSE l[Len(l)]
IsUpToDate(a, b) == LastTerm(a) > LastTerm(b) \/ (LastTerm(a) = LastTerm(b) /\ Len(a) >= Len(b))

StepDown(s) ==
    /\ lease' = [lease EXCEPT ![s] = 0]
    /\ leading' = [leading EXCEPT ![s] = FALSE]
    /\ transferred' = [transferred EXCEPT ![s] = FALSE]
    /\ round' = [round EXCEPT ![s] = NoRound]

IsOffered(s) == <<term[s], s>> \in offers

(* A server that was offered the leadership campaigns in spite of promises; others after their own *)
(* promise to the leader has ended.                                                                *)
Campaign(s) ==
    /\ role[s] # "leader"
    /\ term[s] < MaxTerm
    /\ hold[s] = 0 \/ IsOffered(s)
    /\ term' = [term EXCEPT ![s] = @ + 1]
    /\ vote' = [vote EXCEPT ![s] = s]
    /\ role' = [role EXCEPT ![s] = "candidate"]
    /\ votes' = [votes EXCEPT ![s] = {s}]
    /\ StepDown(s)
    /\ UNCHANGED <<log, commit, applied, ahead, hold, network, clients, counts>>

GrantVote(s, c) ==
    /\ s # c
    /\ role[c] = "candidate"
    /\ term[s] < term[c] \/ (term[s] = term[c] /\ vote[s] = None /\ role[s] = "follower")
    /\ hold[s] = 0 \/ <<term[c] - 1, c>> \in offers
    /\ IsUpToDate(log[c], log[s])
    /\ term' = [term EXCEPT ![s] = term[c]]
    /\ vote' = [vote EXCEPT ![s] = c]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ votes' = [votes EXCEPT ![c] = @ \cup {s}, ![s] = {}]
    /\ StepDown(s)
    /\ UNCHANGED <<log, commit, applied, ahead, hold, network, clients, counts>>

Lead(s) ==
    /\ role[s] = "candidate"
    /\ votes[s] \in Quorums
    /\ Len(log[s]) < MaxLog
    /\ role' = [role EXCEPT ![s] = "leader"]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ log' = [log EXCEPT ![s] = Append(@, term[s])]
    /\ lead' = [lead EXCEPT ![term[s]] = [by |-> s, e |-> log'[s], commit |-> commit[s]]]
    /\ acked' = [acked EXCEPT ![s][term[s]] = Len(log'[s])]
    /\ UNCHANGED <<term, vote, commit, applied, leases, beats, answers, offers, clients, counts>>

Write(s) ==
    /\ Writes
    /\ role[s] = "leader"
    /\ leading[s]
    /\ Len(log[s]) < MaxLog
    /\ log' = [log EXCEPT ![s] = Append(@, term[s])]
    /\ lead' = [lead EXCEPT ![term[s]].e = log'[s]]
    /\ acked' = [acked EXCEPT ![s][term[s]] = Len(log'[s])]
    /\ UNCHANGED <<term, vote, role, votes, commit, applied, leases, beats, answers, offers, clients,
                   counts>>

RECURSIVE Agreed(_, _, _)
Agreed(a, b, i) ==
    IF i < Len(a) /\ i < Len(b) /\ a[i + 1] = b[i + 1] THEN Agreed(a, b, i + 1) ELSE i

(* Receives entries of the leader of term t, or its commit index: the server heard from a leader. *)
Receive(s, t, upto, learns) ==
    /\ lead[t].by # None /\ lead[t].by # s
    /\ t >= term[s]
    /\ LET all == lead[t].e
           same == Agreed(log[s], all, 0)
       IN
        /\ upto <= Len(all) /\ upto >= same
        \* A message without changes is left out: it only renews the promise, as a heartbeat does.
        /\ upto > same \/ acked[s][t] < upto \/ (learns /\ Min(lead[t].commit, upto) > commit[s])
        /\ log' = [log EXCEPT ![s] = IF upto > same THEN SubSeq(all, 1, upto) ELSE @]
        /\ acked' = [acked EXCEPT ![s][t] = Max(@, upto)]
        /\ commit' = [commit EXCEPT ![s] =
                IF learns THEN Max(@, Min(lead[t].commit, upto)) ELSE @]
    /\ term' = [term EXCEPT ![s] = t]
    /\ vote' = [vote EXCEPT ![s] = IF t > term[s] THEN None ELSE @]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ hold' = [hold EXCEPT ![s] = ElectionTicks]
    /\ StepDown(s)
    /\ UNCHANGED <<applied, ahead, lead, beats, answers, offers, clients, counts>>

(* With commit return the client is answered here. *)
Commit(s) ==
    /\ role[s] = "leader"
    /\ LET ready == {i \in (commit[s] + 1)..Len(log[s]) :
                {v \in Servers : acked[v][term[s]] >= i} \in Quorums}
           i == MaxOf(ready)
       IN
        /\ ready # {}
        /\ log[s][i] = term[s]
        /\ commit' = [commit EXCEPT ![s] = i]
        /\ lead' = [lead EXCEPT ![term[s]].commit = i]
        /\ chosen' = IF i > Len(chosen) THEN SubSeq(log[s], 1, i) ELSE chosen
        /\ answered' = IF CommitReturn THEN Max(answered, i) ELSE answered
    /\ UNCHANGED <<term, vote, role, votes, log, applied, leases, acked, beats, answers, offers,
                   shown, read, wrong, counts>>

(* Otherwise a leader answers writes of its own term here. *)
Apply(s) ==
    /\ applied[s] < commit[s]
    /\ applied' = [applied EXCEPT ![s] = @ + 1]
    /\ LET own == role[s] = "leader" /\ log[s][applied[s] + 1] = term[s] IN
        /\ leading' = [leading EXCEPT ![s] = @ \/ own]
        /\ answered' = IF own THEN Max(answered, applied[s] + 1) ELSE answered
    /\ UNCHANGED <<term, vote, role, votes, log, commit, ahead, hold, lease, transferred, round, network,
                   chosen, shown, read, wrong, counts>>

(* Memory is lost, with clock and promises: no vote is granted while any granted lease may last.   *)
(* The commit index may be lost as well.                                                           *)
Crash(s) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ commit' = [commit EXCEPT ![s] = 0]
    /\ applied' = [applied EXCEPT ![s] = 0]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ hold' = [hold EXCEPT ![s] = IF Bug("vote_at_once") THEN 0 ELSE ElectionTicks]
    /\ read' = IF read # None /\ read.at = s THEN None ELSE read
    /\ StepDown(s)
    /\ UNCHANGED <<term, vote, log, ahead, network, chosen, answered, shown, wrong, transfers>>

-----------------------------------------------------------------------------
(* Heartbeat rounds confirm leadership, and renew the lease from the time of sending. *)

Begins(s) ==
    /\ round[s].n < MaxRounds
    /\ round' = [round EXCEPT ![s] = [n |-> round[s].n + 1, age |-> 0]]
    /\ beats' = beats \cup {<<term[s], round[s].n + 1>>}

Beat(s) ==
    /\ role[s] = "leader"
    /\ leading[s]
    /\ Begins(s)
    /\ UNCHANGED <<raft, ahead, hold, lease, leading, transferred, lead, acked, answers, offers, clients,
                   counts>>

Answer(s, t, n) ==
    /\ <<t, n>> \in beats
    /\ t >= term[s]
    /\ lead[t].by # s
    /\ answers' = answers \cup {<<t, n, s>>}
    /\ term' = [term EXCEPT ![s] = t]
    /\ vote' = [vote EXCEPT ![s] = IF t > term[s] THEN None ELSE @]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ hold' = [hold EXCEPT ![s] = ElectionTicks]
    /\ StepDown(s)
    /\ UNCHANGED <<log, commit, applied, ahead, lead, acked, beats, offers, clients, counts>>

(* An answer to another round confirms nothing. *)
IsConfirmed(t, n) ==
    LET counts_for(s) == \E m \in 1..MaxRounds : <<t, m, s>> \in answers
                            /\ (m >= n \/ Bug("read_context_reused"))
    IN  {lead[t].by} \cup {s \in Servers : counts_for(s)} \in Quorums

Renew(s) ==
    /\ role[s] = "leader"
    /\ round[s].n > 0
    /\ IsConfirmed(term[s], round[s].n)
    /\ ~transferred[s] \/ Bug("lease_after_transfer")
    /\ round[s].age < LeaseTicks
    /\ lease[s] < LeaseTicks - round[s].age
    /\ lease' = [lease EXCEPT ![s] = LeaseTicks - round[s].age]
    /\ UNCHANGED <<raft, ahead, hold, leading, transferred, round, network, clients, counts>>

Transfer(s, c) ==
    /\ role[s] = "leader"
    /\ s # c
    /\ transfers < MaxTransfers
    /\ transfers' = transfers + 1
    /\ offers' = offers \cup {<<term[s], c>>}
    /\ transferred' = [transferred EXCEPT ![s] = TRUE]
    /\ lease' = [lease EXCEPT ![s] = IF Bug("lease_after_transfer") THEN @ ELSE 0]
    /\ UNCHANGED <<raft, ahead, hold, leading, round, lead, acked, beats, answers, clients, crashes>>

-----------------------------------------------------------------------------
(* Reads. `floor` is the last state that was answered or shown before the read began. *)

State(s) == IF Overlay /\ ~Bug("commit_return_without_overlay") THEN commit[s] ELSE applied[s]

Finish(got, floor) ==
    /\ shown' = Max(shown, got)
    /\ wrong' = wrong
            \cup (IF got < floor.answered THEN {"stale"} ELSE {})
            \cup (IF got < floor.shown THEN {"backwards"} ELSE {})
            \cup (IF got > Len(chosen) THEN {"uncommitted"} ELSE {})
    /\ read' = None
    /\ UNCHANGED <<chosen, answered>>

Floor == [answered |-> answered, shown |-> shown]
MayRead(s) == role[s] = "leader" /\ (leading[s] \/ Bug("read_before_no_op"))
(* The read must see what a follower may have shown, or the lease does not serve it. *)
IsCurrent(s) == Overlay \/ applied[s] = commit[s] \/ Bug("lease_ahead_of_apply")

(* On a request thread: find the lease, take a view, check that the lease is still valid. *)
LeaseFind(s) ==
    /\ "lease" \in Kinds
    /\ read = None
    /\ MayRead(s)
    /\ lease[s] > 0
    /\ read' = [kind |-> "lease", at |-> s, term |-> term[s], floor |-> Floor, got |-> None, n |-> 0]
    /\ UNCHANGED <<raft, leases, network, chosen, answered, shown, wrong, counts>>

LeaseView(s) ==
    /\ read # None /\ read.kind = "lease" /\ read.at = s
    /\ IF role[s] = "leader" /\ term[s] = read.term /\ lease[s] > 0 /\ IsCurrent(s)
       THEN Finish(State(s), read.floor)
       ELSE read' = None /\ UNCHANGED <<chosen, answered, shown, wrong>>
    /\ UNCHANGED <<raft, leases, network, counts>>

(* Without a lease: a round that starts after the read, and the commit index of that moment. The   *)
(* read may wait on the leader or on a follower, and be sent to any server that believes to lead.  *)
Ask(s) ==
    /\ "index" \in Kinds
    /\ read = None
    /\ read' = [kind |-> "asks", at |-> s, term |-> 0, floor |-> Floor, got |-> None, n |-> 0]
    /\ UNCHANGED <<raft, leases, network, chosen, answered, shown, wrong, counts>>

TakeIndex(l) ==
    /\ read # None /\ read.kind = "asks"
    /\ MayRead(l)
    /\ IF Bug("read_index_unconfirmed") THEN UNCHANGED <<round, beats>> ELSE Begins(l)
    /\ read' = [read EXCEPT !.kind = "waits", !.term = term[l], !.got = commit[l],
                            !.n = round'[l].n]
    /\ UNCHANGED <<raft, ahead, hold, lease, leading, transferred, lead, acked, answers, offers, chosen,
                   answered, shown, wrong, counts>>

Served(s) ==
    /\ read # None /\ read.kind = "waits" /\ read.at = s
    /\ Bug("read_index_unconfirmed") \/ IsConfirmed(read.term, read.n)
    /\ applied[s] >= read.got \/ (Overlay /\ commit[s] >= read.got) \/ Bug("read_before_apply")
    /\ Finish(State(s), read.floor)
    /\ UNCHANGED <<raft, leases, network, counts>>

-----------------------------------------------------------------------------

Next ==
    \E s \in Servers :
        \/ Tick(s) \/ Campaign(s) \/ Lead(s) \/ Write(s) \/ Commit(s) \/ Apply(s) \/ Crash(s)
        \/ Beat(s) \/ Renew(s)
        \/ LeaseFind(s) \/ LeaseView(s) \/ Ask(s) \/ TakeIndex(s) \/ Served(s)
        \/ \E c \in Servers : GrantVote(s, c) \/ Transfer(s, c)
        \/ \E t \in 1..MaxTerm, upto \in 0..MaxLog, learns \in BOOLEAN : Receive(s, t, upto, learns)
        \/ \E t \in 1..MaxTerm, n \in 1..MaxRounds : Answer(s, t, n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

(* A read returns every write that was answered before it began. *)
ReadsSeeAnswered == "stale" \notin wrong
(* It returns no older state than a read that ended before it began. *)
ReadsMonotone == "backwards" \notin wrong
(* It returns only committed state. *)
ReadsCommitted == "uncommitted" \notin wrong
(* Constraint for the short configurations: no server can depose the last leader. Its own lease is *)
(* checked in the larger ones.                                                                     *)
LastLeaderStays ==
    \A s \in Servers : (role[s] = "leader" /\ term[s] = MaxTerm) => round[s].n = 0

(* While a lease may serve reads, no later leader has committed anything. *)
LeaseExclusive ==
    \A s \in Servers : (role[s] = "leader" /\ lease[s] > 0) =>
        \A o \in Servers : role[o] = "leader" => term[o] <= term[s]
CommittedAgree ==
    \A s \in Servers : commit[s] <= Len(chosen)
        /\ SubSeq(log[s], 1, commit[s]) = SubSeq(chosen, 1, commit[s])
AnsweredCommitted == answered <= Len(chosen)

=============================================================================
