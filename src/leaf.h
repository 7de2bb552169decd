/*-------------------------------------------------------------------------
 *
 * leaf.h
 *	  One leaf: look for a digest, insert a claim, delete one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMQ_LEAF_H
#define IDEMQ_LEAF_H

#include "idemq.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"

#include "catalog.h"
#include "digest.h"

typedef enum KeyState
{
	KEY_FREE,					/* nobody has it */
	KEY_OPEN,					/* another transaction is deciding */
	KEY_MINE,					/* this transaction claimed it */
	KEY_TAKEN,					/* a committed transaction claimed it */
} KeyState;

/* What was found of a key. */
typedef struct Sighting
{
	KeyState	state;
	TransactionId decider;		/* KEY_OPEN: whom to wait for */
	XLogRecPtr	commit_lsn;		/* KEY_TAKEN: what must be flushed */
	TimestampTz claimed_at;		/* the same, when asked as_committed */
	ItemPointerData tid;		/* KEY_MINE, KEY_TAKEN */
} Sighting;

typedef enum LeafOpen
{
	LEAF_OPENED,
	LEAF_BUSY,					/* somebody holds a lock, and we do not wait */
	LEAF_CHANGED,				/* ask catalog_leaves() again */
} LeafOpen;

typedef enum LeafInsert
{
	LEAF_INSERTED,
	LEAF_CONFLICT,				/* a row that came by SQL was faster */
	LEAF_INSERT_BUSY,			/* somebody holds a lock, and we do not wait */
} LeafInsert;

typedef enum LeafDelete
{
	LEAF_DELETED,
	LEAF_GONE,					/* somebody else was faster */
	LEAF_LOCKED,				/* somebody holds a lock on the row, maybe we */
} LeafDelete;

extern LeafOpen leaf_open(Leaf *leaf, LOCKMODE lockmode, bool wait, Relation *rel);
extern bool leaf_open_held(const Leaf *leaf, LOCKMODE lockmode, Relation *rel);
extern void leaf_close(Relation rel, LOCKMODE lockmode);
extern bool leaf_look(Leaf *leaf, Relation rel, const IdemDigest *digest,
					  bool as_committed, bool wait, Sighting *seen);
extern LeafInsert leaf_insert(Leaf *leaf, Relation rel, Datum scope, Datum key,
							  const IdemDigest *digest, TimestampTz claimed_at,
							  bool wait);
extern LeafDelete leaf_delete(Leaf *leaf, Relation rel, const IdemDigest *digest,
							  ItemPointer tid, bool locked);
extern bool leaf_wait_for_row(Relation rel, const ItemPointerData *tid);
extern bool leaf_claimed_after(Relation rel, TimestampTz cutoff);

#endif							/* IDEMQ_LEAF_H */
