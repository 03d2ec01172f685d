"""The order of ops: dependences, and orders for speed or for memory.

costs           times of ops on a device, by the cost model
dependences     dependences of ops: operands, readers of an old value before its update, and checks and steps that may
                fail before updates, so a call that fails changes nothing
group_products  delays products that nothing waits for, so that several of them share a launch
least_memory    orders with a low peak of live bytes
lists           list scheduling: the ready op with the smallest key comes next
schedule        chooses the order of ops
"""
