---------------------------- MODULE StagePublish ----------------------------
(***************************************************************************)
(* One partition on its way from a source to files that readers list.      *)
(*                                                                         *)
(* Nodes take the partition's lease under a growing token, stage a batch   *)
(* where no reader sees it, commit position and receipts in one swap of    *)
(* the lease's row, create the commit's manifest, publish the files one by *)
(* one, and clear the receipts.                                            *)
(*                                                                         *)
(* There is no clock: any node may take the lease at any moment, and any   *)
(* node may pause for ever and go on later.  A request may land long after *)
(* its sender died or gave up waiting, and more than once.                 *)
(*                                                                         *)
(* A step that sends one request and gets its answer is one action: what   *)
(* others do in between is the same as if they had done it before.  Steps  *)
(* that read first and write later are two actions.  README.md says which  *)
(* function of holdfast each action stands for.                            *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes,
    None,           \* "nothing", unlike any other value
    Items,          \* the partition has the items 0 .. Items - 1
    MaxFiles,       \* a commit has at most that many files
    MaxTakes,       \* so often the lease is taken while faults go on
    MaxGeneration,  \* generations 1 .. MaxGeneration
    MaxLate,        \* so many requests may be on their way without a sender that waits
    MaxRollbacks,   \* so often the store loses what it acknowledged
    MaxExpired,     \* so many staged files vanish by themselves
    MaxReopens,     \* so often a person reopens the halted partition
    FaultsEnd,      \* whether faults come to an end (for liveness)
    Bugs            \* what is built wrong; empty for holdfast as it should be

VARIABLES
    row,        \* the lease's row in the store
    node,       \* what each node knows and is about to do
    staged,     \* staged files: place, token, items
    manifests,  \* created beside the data, never changed
    bucket,     \* visible files: key, items
    late,       \* requests without a sender that waits
    history,    \* earlier rows that the store may come back with
    takes, rollbacks, expired, reopens, calm

vars == <<row, history, takes, node, staged, manifests, bucket, late, rollbacks, expired, reopens, calm>>
store == <<row, history, takes>>
faults == <<late, rollbacks, expired, reopens, calm>>

Bug(name) == name \in Bugs

-----------------------------------------------------------------------------
(* Batches.  A batch is one try of one node, and its name is unlike that of any other try: holdfast puts token and a
   random id into it.  The same range may be cut into files differently by every try: nothing depends on a parser that
   gives the same bytes twice.                                                                                       *)

Range(a, b) == {o \in 0..(Items - 1) : a <= o /\ o < b}

First(items) == CHOOSE o \in items : \A p \in items : o <= p

Cuts ==  \* the items from a to b, spread over k files
    [a \in 0..Items |-> [b \in 0..Items |-> [k \in 1..MaxFiles |->
        {[items |-> f, first |-> First(f), part |-> First(f) % k] :
            f \in {{o \in Range(a, b) : o % k = g} : g \in 0..(k - 1)} \ {{}}}]]]

Place(batch, file) == IF Bug("StagingNameReused") THEN <<batch.start, file.part>> ELSE <<batch, file.part>>

Files(batch) ==
    {[place |-> Place(batch, f), key |-> <<batch.generation, f.part, f.first>>, items |-> f.items] :
        f \in Cuts[batch.start][batch.end][batch.files]}

Places(batch) == {Place(batch, f) : f \in Cuts[batch.start][batch.end][batch.files]}

Ranges(start, end, again) ==  \* what a try may cover: any length from the start on, or the whole range again
    IF again THEN {<<start, end>>} \cup (IF Bug("RestageShorter") THEN {<<start, b>> : b \in (start + 1)..end} ELSE {})
             ELSE {<<start, b>> : b \in (start + 1)..end}

Tries(n, start, end, generation, revision, again) ==
    {[by |-> n, token |-> node[n].lease.token, era |-> rollbacks, start |-> r[1], end |-> r[2], files |-> k,
      generation |-> generation, parser |-> node[n].generation, revision |-> revision] :
        r \in Ranges(start, end, again), k \in 1..MaxFiles}

Sensible(batch) == batch.files <= Cardinality(Range(batch.start, batch.end))

StagedFiles(batch) == {[place |-> f.place, token |-> batch.token, items |-> f.items] : f \in Files(batch)}

StageInto(present, new) ==  \* a name that is used again is overwritten; holdfast never uses one again
    {x \in present : \A y \in new : y.place # x.place} \cup new

-----------------------------------------------------------------------------
(* Receipts and manifests *)

Receipts(batch) == [commit |-> batch, batch |-> batch]  \* commit: the commit's id; batch: where its files are staged

ManifestOf(lease) ==
    [sequence |-> lease.sequence, commit |-> lease.receipts.commit,
     start |-> lease.receipts.commit.start, end |-> lease.receipts.commit.end,
     files |-> {[key |-> f.key, items |-> f.items] : f \in Files(lease.receipts.batch)}]

Agrees(m, other) == m.commit = other.commit /\ m.files = other.files

ManifestsAt(sequence) == {m \in manifests : m.sequence = sequence}

Visible(f) == [key |-> f.key, items |-> f.items] \in bucket

Foreign(f) == \E x \in bucket : x.key = f.key /\ x.items # f.items

IsStaged(f) == \E x \in staged : x.place = f.place

-----------------------------------------------------------------------------
(* Nodes *)

Idle == [pc |-> "idle", doubt |-> FALSE, generation |-> 1, lease |-> None, batch |-> None, left |-> {}, stale |-> None]

Swaps == {"commit", "clear", "restage", "switch", "complete", "halt"}  \* steps that write the row

WithLease(n, pc, lease) == [node[n] EXCEPT !.pc = pc, !.doubt = FALSE, !.lease = lease, !.batch = None, !.left = {}, !.stale = None]

Admitted(n, lease) ==  \* what an owner does next: publish what is committed, else go on, until nothing is left
    WithLease(n, CASE lease.receipts # None -> "publish"
                   [] lease.receipts = None /\ lease.position = Items /\ lease.generation = node[n].generation -> "complete"
                   [] OTHER -> "plan", lease)

Put(new) ==  \* the only way to the row
    /\ row' = new
    /\ history' = IF rollbacks < MaxRollbacks /\ new # row THEN history \cup {row} ELSE history

Go(n, pc) == node' = [node EXCEPT ![n].pc = pc]

Become(n, state) == node' = [node EXCEPT ![n] = state]

Init ==
    /\ row = [version |-> 0, token |-> 0, owner |-> None, status |-> "open", sequence |-> 0, position |-> 0,
              generation |-> 1, receipts |-> None]
    /\ node = [n \in Nodes |-> Idle]
    /\ staged = {} /\ manifests = {} /\ bucket = {} /\ late = {}
    /\ history = {} /\ takes = 0 /\ rollbacks = 0 /\ expired = 0 /\ reopens = 0 /\ calm = FALSE

-----------------------------------------------------------------------------
(* What can never matter again: a staged file that nothing names and, its name being used once only, nothing ever will;
   a request that comes too late whatever happens.  Left out of View, which tells TLC what distinguishes two states.    *)
PlacesOf(receipts) == IF receipts = None THEN {} ELSE Places(receipts.batch)

Named ==
    UNION {PlacesOf(r.receipts) : r \in {row} \cup history}
    \cup UNION {PlacesOf(node[n].lease.receipts) : n \in {n \in Nodes : node[n].lease # None}}
    \cup UNION {Places(node[n].batch) : n \in {n \in Nodes : node[n].batch # None}}
    \cup UNION {PlacesOf(m.row.receipts) : m \in {m \in late : m.kind = "swap"}}
    \cup {m.file.place : m \in {m \in late : m.kind = "link"}}

Alive(m) ==
    CASE m.kind = "swap"     -> row.version <= m.version \/ rollbacks < MaxRollbacks
      [] m.kind = "stage"    -> \E x \in m.files : x.place \in Named
      [] m.kind = "delete"   -> \E place \in m.places : place \in Named
      [] m.kind = "manifest" -> ManifestsAt(m.manifest.sequence) = {}
      [] m.kind = "link"     -> ~Visible(m.file)

LateOnes == IF Bugs = {} THEN {m \in late : Alive(m)} ELSE late

Room == Cardinality(LateOnes) < MaxLate

View ==
    LET named == Named
        seen(n) == IF node[n].stale = None \/ node[n].stale \in named THEN node[n] ELSE [node[n] EXCEPT !.stale = None]
    IN <<row, history, takes, [n \in Nodes |-> seen(n)], {x \in staged : x.place \in named}, manifests, bucket, LateOnes,
         rollbacks, expired, reopens, calm>>

-----------------------------------------------------------------------------
(* Take a lease.  While faults go on, at any moment; then only when nobody works under the row's token. *)

Working(n) == node[n].pc # "idle" /\ node[n].lease.token = row.token /\ row.owner = n

Take(n, generation) ==
    /\ node[n].pc = "idle" /\ row.status = "open"
    /\ IF calm THEN (\A m \in Nodes : ~Working(m)) /\ generation = MaxGeneration ELSE takes < MaxTakes
    /\ takes' = IF calm THEN takes ELSE takes + 1
    /\ Put([row EXCEPT !.version = @ + 1, !.token = @ + 1, !.owner = n])
    /\ Become(n, [Idle EXCEPT !.pc = "witness", !.generation = generation, !.lease = row'])
    /\ UNCHANGED <<staged, manifests, bucket, faults>>

(* Does the bucket know of a commit that the row does not? *)
Witness(n) ==
    /\ node[n].pc = "witness"
    /\ Go(n, IF ManifestsAt(node[n].lease.sequence + 1) # {} /\ ~Bug("NoWitness") THEN "halt" ELSE "sweep")
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

(* Garbage collection: read first ... *)
Stale(lease) ==
    LET named == IF lease.receipts = None \/ Bug("SweepNamedFiles") THEN {} ELSE Places(lease.receipts.batch)
    IN {x \in staged : (x.token < lease.token \/ Bug("SweepAnyToken")) /\ x.place \notin named}

List(n) ==
    /\ node[n].pc = "sweep"
    /\ \/ Become(n, Admitted(n, node[n].lease))
       \/ \E x \in Stale(node[n].lease) : Become(n, [node[n] EXCEPT !.pc = "discard", !.stale = x.place])
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

(* ... and delete later, however much has happened since. *)
Discard(n) ==
    /\ node[n].pc = "discard"
    /\ staged' = {x \in staged : x.place # node[n].stale}
    /\ Become(n, Admitted(n, node[n].lease))
    /\ UNCHANGED <<store, manifests, bucket, faults>>

-----------------------------------------------------------------------------
(* Stage a batch: all of its files or, if the node dies, some that nobody will ever name. *)

MayPlan(n) ==
    /\ node[n].pc = "plan" \/ (Bug("CommitWhilePending") /\ node[n].pc = "publish")
    /\ \/ node[n].lease.generation = node[n].generation
       \/ node[n].lease.generation > node[n].generation /\ Bug("OldGenerationMayCommit")

NextBatches(n) ==
    {t \in Tries(n, node[n].lease.position, Items, node[n].generation, 0, FALSE) : Sensible(t)}

Stage(n) ==
    /\ MayPlan(n)
    /\ \E t \in NextBatches(n) :
        /\ staged' = StageInto(staged, StagedFiles(t))
        /\ Become(n, [node[n] EXCEPT !.pc = "commit", !.batch = t])
    /\ UNCHANGED <<store, manifests, bucket, faults>>

(* The node dies or gives up; its tasks go on staging. *)
StageLate(n) ==
    /\ MayPlan(n) /\ ~calm /\ Room
    /\ \E t \in NextBatches(n) : late' = LateOnes \cup {[kind |-> "stage", files |-> StagedFiles(t)]}
    /\ Become(n, Idle)
    /\ UNCHANGED <<store, staged, manifests, bucket, rollbacks, expired, reopens, calm>>

(* A node of a later generation moves the row to it, between two commits.  An older one hands the lease back. *)
BeginSwitch(n) ==
    /\ node[n].pc = "plan" /\ node[n].lease.generation < node[n].generation
    /\ Go(n, "switch")
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

HandBack(n) ==
    /\ node[n].pc = "plan" /\ node[n].lease.generation > node[n].generation /\ ~Bug("OldGenerationMayCommit")
    /\ Become(n, Idle)
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

-----------------------------------------------------------------------------
(* Fenced writes: the row that is wanted, derived from the row that is known, swapped by version. *)

Derived(n, lease) ==
    LET next == [lease EXCEPT !.version = @ + 1] IN
    CASE node[n].pc = "commit"  -> [next EXCEPT !.sequence = @ + 1, !.position = node[n].batch.end,
                                                !.receipts = Receipts(node[n].batch)]
      [] node[n].pc = "clear"   -> [next EXCEPT !.receipts = None]
      [] node[n].pc = "restage" -> [next EXCEPT !.receipts.batch = node[n].batch]
      [] node[n].pc = "switch"  -> [next EXCEPT !.generation = node[n].generation]
      [] node[n].pc = "complete" -> [next EXCEPT !.status = "completed", !.owner = None]
      [] node[n].pc = "halt"    -> [next EXCEPT !.status = "failed", !.owner = None]

Wanted(n) == Derived(n, node[n].lease)

Swap(n) == [kind |-> "swap", what |-> node[n].pc, version |-> node[n].lease.version, row |-> Wanted(n)]

Applies(m) ==
    IF m.what = "commit" /\ Bug("CommitNotFenced")
    THEN row.sequence + 1 = m.row.sequence /\ row.receipts = None /\ row.status = "open"
    ELSE row.version = m.version

Applied(m) ==
    IF m.what = "commit" /\ Bug("CommitNotFenced")
    THEN [row EXCEPT !.version = @ + 1, !.sequence = m.row.sequence, !.position = m.row.position,
                     !.receipts = m.row.receipts]
    ELSE m.row

After(n, written) ==  \* what a node does when its write is known to be applied
    CASE node[n].pc = "commit"  -> WithLease(n, IF Bug("DoneBeforePublish") THEN "clear" ELSE "publish", written)
      [] node[n].pc = "clear"   -> [WithLease(n, "settle", written) EXCEPT !.batch = node[n].lease.receipts.batch]
      [] node[n].pc = "restage" -> WithLease(n, "publish", written)
      [] node[n].pc = "switch"  -> Admitted(n, written)
      [] node[n].pc \in {"complete", "halt"} -> Idle

Write(n) ==
    /\ node[n].pc \in Swaps /\ ~node[n].doubt
    /\ IF Applies(Swap(n))
       THEN Put(Applied(Swap(n))) /\ Become(n, After(n, Applied(Swap(n)))) /\ UNCHANGED takes
       ELSE node' = [node EXCEPT ![n].doubt = TRUE] /\ UNCHANGED store
    /\ UNCHANGED <<staged, manifests, bucket, faults>>

(* No answer, or "conflict": the row tells.  It is the row that was wanted: applied.  The same token and owner: derive the
   change again, unless the row does not allow it any more.  Anything else: the lease is lost.                          *)
Held(n) == row.token = node[n].lease.token /\ row.owner = n

StillPending(n) == row.receipts # None /\ row.receipts.commit = node[n].lease.receipts.commit

Allowed(n) ==
    CASE node[n].pc = "commit"  -> /\ row.sequence = node[n].lease.sequence /\ row.generation = node[n].lease.generation
                                   /\ row.receipts = None
      [] node[n].pc = "restage" -> StillPending(n)
      [] node[n].pc = "switch"  -> row.receipts = None /\ row.generation <= node[n].generation
      [] node[n].pc = "complete" -> row.receipts = None
      [] OTHER                  -> TRUE

ReadBack(n) ==
    /\ node[n].pc \in Swaps /\ node[n].doubt
    /\ CASE row = Wanted(n) -> Become(n, After(n, row))
         [] row # Wanted(n) /\ ~Held(n) -> Become(n, Idle)
         [] row # Wanted(n) /\ Held(n) /\ node[n].pc = "clear" /\ ~StillPending(n) -> Become(n, After(n, row))
         [] row # Wanted(n) /\ Held(n) /\ ~(node[n].pc = "clear" /\ ~StillPending(n)) /\ Allowed(n) ->
                node' = [node EXCEPT ![n].doubt = FALSE, ![n].lease = row]
         [] OTHER -> Become(n, WithLease(n, "witness", row))  \* dropped, and found again by the next look
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

-----------------------------------------------------------------------------
(* Publish: the manifest first, then the files, then the receipts are cleared.  Needs no lease that is still valid. *)

(* Is the manifest there, and if not, is everything there that it would name? *)
Publish(n) ==
    /\ node[n].pc = "publish" /\ ~Bug("ManifestAfterData")
    /\ ~(Bug("FoundCommitIsLeft") /\ node[n].lease.receipts.commit.token < node[n].lease.token)
    /\ LET mine == ManifestOf(node[n].lease)  there == ManifestsAt(mine.sequence)
           files == Files(node[n].lease.receipts.batch)
       IN CASE \E m \in there : Agrees(m, mine) -> node' = [node EXCEPT ![n].pc = "link", ![n].left = files]
            [] there # {} /\ ~(\E m \in there : Agrees(m, mine)) -> Go(n, "halt")
            [] there = {} /\ (\E f \in files : ~IsStaged(f)) -> Go(n, "rebuild")
            [] OTHER -> Go(n, "manifest")
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

Created(m) ==
    IF Bug("ManifestOverwritten") THEN {x \in manifests : x.sequence # m.sequence} \cup {m}
    ELSE IF ManifestsAt(m.sequence) = {} THEN manifests \cup {m} ELSE manifests

CreateManifest(n) ==
    /\ node[n].pc = "manifest"
    /\ LET mine == ManifestOf(node[n].lease) IN
        /\ manifests' = Created(mine)
        /\ IF \E m \in manifests' : m.sequence = mine.sequence /\ Agrees(m, mine)
           THEN IF Bug("ManifestAfterData") THEN Go(n, "clear")
                ELSE node' = [node EXCEPT ![n].pc = "link", ![n].left = Files(node[n].lease.receipts.batch)]
           ELSE Go(n, "halt")
    /\ UNCHANGED <<store, staged, bucket, faults>>

Linked(f) ==  \* the bytes that are staged now appear under the final key, unless something is there already
    LET bytes == {x \in staged : x.place = f.place} IN
    IF bytes = {} \/ (\E x \in bucket : x.key = f.key) THEN bucket
    ELSE bucket \cup {[key |-> f.key, items |-> (CHOOSE x \in bytes : TRUE).items]}

LinkFile(n) ==
    /\ node[n].pc = "link"
    /\ \E f \in node[n].left :
        /\ bucket' = Linked(f)
        /\ CASE Foreign(f) -> Go(n, "halt")
             [] ~Foreign(f) /\ ~Visible(f) /\ ~IsStaged(f) -> node' = [node EXCEPT ![n].pc = "rebuild", ![n].left = {}]
             [] OTHER -> LET rest == node[n].left \ {f} IN
                    node' = [node EXCEPT ![n].left = rest,
                                         ![n].pc = IF rest # {} THEN "link"
                                                   ELSE IF Bug("ManifestAfterData") THEN "manifest" ELSE "clear"]
    /\ UNCHANGED <<store, staged, manifests, faults>>

(* The row names the receipts no longer: what is left of them in staging may go. *)
Settle(n) ==
    /\ node[n].pc = "settle"
    /\ staged' = {x \in staged : x.place \notin Places(node[n].batch)}
    /\ Become(n, Admitted(n, node[n].lease))
    /\ UNCHANGED <<store, manifests, bucket, faults>>

(* Staged data of a commit is gone: read its range again.  What a manifest tells of already must come out the same.  Only
   the parser of the commit's generation can do it.  A node of an earlier one leaves it to the others; where a later one
   is current nobody runs that parser any more, and the partition halts.                                             *)
MayRebuild(n) == node[n].generation = node[n].lease.receipts.commit.generation \/ Bug("RebuildByAnyParser")

RebuildAnew(n) ==
    LET receipts == node[n].lease.receipts  old == ManifestOf(node[n].lease) IN
    \E t \in Tries(n, receipts.commit.start, receipts.commit.end, receipts.commit.generation,
                   receipts.batch.revision + 1, TRUE) :
        LET fresh == ManifestOf([node[n].lease EXCEPT !.receipts.batch = t])  there == ManifestsAt(old.sequence) IN
        /\ Sensible(t)
        /\ staged' = StageInto(staged, StagedFiles(t))
        /\ IF there = {} \/ (\E m \in there : Agrees(m, old) /\ Agrees(m, fresh))
           THEN Become(n, [node[n] EXCEPT !.pc = "restage", !.batch = t])
           ELSE Go(n, "halt")

Rebuild(n) ==
    /\ node[n].pc = "rebuild"
    /\ IF MayRebuild(n) THEN RebuildAnew(n)
       ELSE /\ ~Bug("RebuildWaitsForItsParser")
            /\ IF node[n].generation < node[n].lease.receipts.commit.generation THEN Become(n, Idle) ELSE Go(n, "halt")
            /\ UNCHANGED staged
    /\ UNCHANGED <<store, manifests, bucket, faults>>

(* Mutant: the files are made visible first and the manifest is created afterwards. *)
LinkFirst(n) ==
    /\ Bug("ManifestAfterData") /\ node[n].pc = "publish"
    /\ node' = [node EXCEPT ![n].pc = "link", ![n].left = Files(node[n].lease.receipts.batch)]
    /\ UNCHANGED <<store, staged, manifests, bucket, faults>>

(* Mutant: the files are made visible before they are committed. *)
PublishEarly(n) ==
    /\ Bug("PublishBeforeCommit") /\ node[n].pc = "commit"
    /\ \E f \in Files(node[n].batch) : bucket' = Linked(f)
    /\ UNCHANGED <<store, node, staged, manifests, faults>>

-----------------------------------------------------------------------------
(* Faults *)

Requests(n) ==  \* what the node may have sent when it dies or stops waiting
    CASE node[n].pc \in Swaps /\ ~node[n].doubt -> {Swap(n)}
      [] node[n].pc = "manifest" -> {[kind |-> "manifest", manifest |-> ManifestOf(node[n].lease)]}
      [] node[n].pc = "link"     -> {[kind |-> "link", file |-> f] : f \in node[n].left}
      [] node[n].pc = "discard"  -> {[kind |-> "delete", places |-> {node[n].stale}]}
      [] node[n].pc = "settle"   -> {[kind |-> "delete", places |-> Places(node[n].batch)]}
      [] OTHER -> {}

Crash(n) ==
    /\ ~calm /\ node[n].pc # "idle"
    /\ \/ UNCHANGED late
       \/ Room /\ \E m \in Requests(n) : late' = LateOnes \cup {m}
    /\ Become(n, Idle)
    /\ UNCHANGED <<store, staged, manifests, bucket, rollbacks, expired, reopens, calm>>

(* No answer.  A write to the row is looked into; anything else is simply sent again. *)
Timeout(n) ==
    /\ ~calm /\ Room
    /\ \E m \in Requests(n) : late' = LateOnes \cup {m}
    /\ IF node[n].pc \in Swaps THEN node' = [node EXCEPT ![n].doubt = TRUE] ELSE UNCHANGED node
    /\ staged' = IF node[n].pc = "commit" /\ Bug("AbortAfterTimeout")
                 THEN {x \in staged : x.place \notin Places(node[n].batch)} ELSE staged
    /\ UNCHANGED <<store, manifests, bucket, rollbacks, expired, reopens, calm>>

(* A request lands without anybody waiting for it, and may land again. *)
Land(m) ==
    /\ late' = late \ {m} \/ (~calm /\ late' = late)
    /\ Put(IF m.kind = "swap" /\ Applies(m) THEN Applied(m) ELSE row)
    /\ staged' = CASE m.kind = "stage"  -> StageInto(staged, m.files)
                   [] m.kind = "delete" -> {x \in staged : x.place \notin m.places}
                   [] OTHER -> staged
    /\ manifests' = IF m.kind = "manifest" THEN Created(m.manifest) ELSE manifests
    /\ bucket' = IF m.kind = "link" THEN Linked(m.file) ELSE bucket
    /\ UNCHANGED <<takes, node, rollbacks, expired, reopens, calm>>

(* The store comes back with an old row: a restored backup, a replica that lagged behind. *)
Rollback ==
    /\ ~calm /\ \E old \in history : row' = old
    /\ history' = {} /\ rollbacks' = rollbacks + 1
    /\ UNCHANGED <<takes, node, staged, manifests, bucket, late, expired, reopens, calm>>

(* Somebody's clean-up rule deletes a staged file. *)
Expire ==
    /\ ~calm /\ expired < MaxExpired
    /\ \E x \in staged : staged' = staged \ {x}
    /\ expired' = expired + 1
    /\ UNCHANGED <<store, node, manifests, bucket, late, rollbacks, reopens, calm>>

(* Somebody reopens a halted partition without having repaired anything. *)
Reopen ==
    /\ ~calm /\ row.status = "failed" /\ reopens < MaxReopens
    /\ Put([row EXCEPT !.version = @ + 1, !.status = "open"])
    /\ reopens' = reopens + 1
    /\ UNCHANGED <<takes, node, staged, manifests, bucket, late, rollbacks, expired, calm>>

FaultsStop ==
    /\ FaultsEnd /\ ~calm
    /\ calm' = TRUE
    /\ UNCHANGED <<store, node, staged, manifests, bucket, late, rollbacks, expired, reopens>>

-----------------------------------------------------------------------------
Work(n) ==
    \/ Witness(n) \/ List(n) \/ Discard(n)
    \/ Stage(n) \/ BeginSwitch(n) \/ HandBack(n)
    \/ Write(n) \/ ReadBack(n)
    \/ Publish(n) \/ CreateManifest(n) \/ LinkFile(n) \/ Settle(n) \/ Rebuild(n)
    \/ LinkFirst(n) \/ PublishEarly(n)

Next ==
    \/ \E n \in Nodes, g \in 1..MaxGeneration : Take(n, g)
    \/ \E n \in Nodes : Work(n) \/ StageLate(n) \/ Crash(n) \/ Timeout(n)
    \/ \E m \in late : Land(m)
    \/ Rollback \/ Expire \/ Reopen \/ FaultsStop

Spec == Init /\ [][Next]_vars

(* Weak fairness: whoever can go on for ever does so one day, and faults end. *)
FairSpec ==
    /\ Spec
    /\ WF_vars(FaultsStop)
    /\ \A n \in Nodes : WF_vars(Work(n)) /\ WF_vars(calm /\ Take(n, MaxGeneration))

Alike == Permutations(Nodes)

-----------------------------------------------------------------------------
(* What users rely on *)

AllItems == 0..(Items - 1)

Copies(o) == Cardinality({x \in bucket : o \in x.items})

Halted == row.status = "failed"

NothingTwice == \A o \in AllItems : Copies(o) <= 1

NothingUncommittedIsVisible ==
    rollbacks = 0 => \A o \in AllItems : Copies(o) > 0 => o < row.position

NothingCommittedIsLost ==  \* every item before the position is visible, or in a file that the receipts name
    \A o \in AllItems : o < row.position =>
        \/ Copies(o) = 1
        \/ row.receipts # None /\ \E f \in Files(row.receipts.batch) : o \in f.items

CommittedDataIsKept ==  \* nobody deletes staged data that is committed and not yet visible
    (rollbacks = 0 /\ expired = 0 /\ row.receipts # None) =>
        \A f \in Files(row.receipts.batch) : Visible(f) \/ \E x \in staged : x.place = f.place /\ x.items = f.items

VisibleIsWitnessed ==  \* a file is visible only if a manifest names it, with these items
    \A x \in bucket : \E m \in manifests : x \in m.files

ManifestsTellAll ==  \* one manifest per commit; together they tell the items in order, without hole or overlap
    \A m \in manifests :
        /\ \A other \in manifests : other.sequence = m.sequence => other = m
        /\ IF m.sequence = 1 THEN m.start = 0 ELSE \E p \in manifests : p.sequence + 1 = m.sequence /\ p.end = m.start
        /\ UNION {f.items : f \in m.files} = Range(m.start, m.end)

GenerationsDoNotMix ==  \* once a later generation has committed, an earlier one never does
    /\ row.receipts # None => row.receipts.commit.generation = row.generation
    /\ \A x, y \in bucket : x.key[3] < y.key[3] => x.key[1] <= y.key[1]

MadeByItsGeneration ==  \* what is committed was parsed by the code of the generation whose names it gets
    row.receipts # None => row.receipts.batch.parser = row.receipts.commit.generation

NobodyElsesFile ==  \* no publish ever meets another file under its key, so that a bucket that overwrites is safe too
    /\ \A n \in Nodes : node[n].pc = "link" => \A f \in node[n].left : ~Foreign(f)
    /\ \A m \in late : m.kind = "link" => ~Foreign(m.file)

CompletedIsComplete == row.status = "completed" => row.receipts = None /\ \A o \in AllItems : Copies(o) = 1

NoFalseAlarm == (rollbacks = 0 /\ expired = 0) => ~Halted

PublishedIsForEver == [][bucket \subseteq bucket' /\ manifests \subseteq manifests']_<<bucket, manifests>>

FenceOnlyRises ==
    [][rollbacks' = 0 => /\ row'.token >= row.token /\ row'.version > row.version /\ row'.sequence >= row.sequence
                         /\ row'.position >= row.position /\ row'.generation >= row.generation]_row

CommittedBecomesVisible == \A o \in AllItems : (o < row.position) ~> (Copies(o) = 1 \/ Halted)

Finished == row.status = "completed" /\ row.receipts = None /\ \A o \in AllItems : Copies(o) = 1

EverythingGetsDone == <>[](Finished \/ Halted)

-----------------------------------------------------------------------------
(* What must be possible, or the rest would say nothing.  Checked by looking for a counterexample. *)

NeverFinished == ~Finished

NeverHalted == ~Halted

NeverRebuilt ==
    ~(row.receipts # None /\ row.receipts.batch.revision > 0 /\ \A f \in Files(row.receipts.batch) : Visible(f))

=============================================================================
