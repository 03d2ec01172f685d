"""The order in which ops run: what must come before what, and orders for one aim each.

costs         how long ops take on a device, by the cost model
dependences   what must come before what: operands, readers of an old value before its update, checks and steps
              that may fail before updates, so that a call that fails has changed nothing
group_products  put products that nothing waits for side by side, where one launch of them fills the device better
least_memory  orders that need little memory
lists         list scheduling: of the ops that are ready, the one with the smallest key comes next
schedule      choose the order in which ops run
"""
