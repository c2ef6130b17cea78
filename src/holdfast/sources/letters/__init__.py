"""The source of a redrive: dead letters of one sink, as the records that they were."""
